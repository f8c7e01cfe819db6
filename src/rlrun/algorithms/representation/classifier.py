"""Classification by the cross-entropy of labels (Bridle 1990, doi 10.1007/978-3-642-76153-9_28).

    L = -log softmax(f(x))_y

With label smoothing ε (Szegedy et al. 2016, arXiv 1512.00567) the target is 1 - ε for the label y, and ε is spread
over all classes.
"""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from rlrun import ops
from rlrun.callbacks.losses.loss import LossCallback, LossResult, Optimizer
from rlrun.core.errors import ConfigError
from rlrun.core.typing import Tree


class ClassifierLoss(LossCallback):
    """Cross-entropy of the labels [B] of observations.

    Args:
        network: from observations to scores of classes [B, K].
        optimizer: of its parameters.
        label_smoothing: ε, from 0 to below 1.

    Raises:
        ConfigError: ε is out of range.
    """

    def __init__(
        self, network: nn.Module, optimizer: Optimizer | None, *, label_smoothing: float = 0.0, **options: Any
    ) -> None:
        if not 0.0 <= label_smoothing < 1.0:
            raise ConfigError(f"label_smoothing: wanted a number from 0 to below 1, got {label_smoothing}")
        super().__init__(network, optimizer, **options)
        self.label_smoothing = label_smoothing

    def loss(self, observation: Tree, label: Tensor) -> LossResult:
        output: Tensor = self.network(observation)
        loss = F.cross_entropy(output, label.long(), reduction="none", label_smoothing=self.label_smoothing)
        return loss, {}, {"classifier/accuracy": ops.accuracy(output.detach(), label)}

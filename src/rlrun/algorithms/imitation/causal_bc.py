"""Causal behavior cloning, ResiduIL (Swamy et al. 2022, arXiv 2202.01312): clone experts with correlated noise.

Noise in an expert's earlier action changes the state in which it acts now. If the current noise correlates with it,
state and noise are correlated, and plain cloning takes the noise for the policy. Observations before the noise began
do not depend on it, so an error that they predict is the policy's own. Two rows of an episode are n steps apart;
a and s belong to the last one, s₀ is the observation of the first one:

    e   = a - π(s)
    L_π = 2 e f(s₀) + weight e²            summed over entries; f without gradient
    L_f = f(s₀)² - 2 e f(s₀) + penalty |f|

f predicts the policy's error from s₀, and the policy minimizes the predicted error. This is instrumental-variable
regression in minimax form. So f has to learn faster than the policy; else the two oscillate. Noise has to be
independent of s₀. With n = 1, as in the paper, noise may correlate between successive steps only; noise that fades more
slowly needs a longer window.

Differences from the paper: windows of any length; |f| is the root mean square over the batch, so that the penalty does
not depend on the batch's size. For continuous actions.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rlrun.callbacks.losses.loss import LossCallback, LossResult, Optimizer
from rlrun.core.errors import ConfigError
from rlrun.core.spaces import Spaces, map_tree
from rlrun.core.typing import Tree
from rlrun.nn import ActionCodec, DeterministicPolicy, EncodedMLP
from rlrun.training.metrics import Metric


class Residual(EncodedMLP):
    """f(s): the expected error of the policy at the end of the window, [B, A]."""

    def __init__(self, spaces: Spaces, *, hidden: Sequence[int] = (256, 256), **options: Any) -> None:
        super().__init__(spaces, ActionCodec(spaces).continuous, hidden=hidden, **options)

    def forward(self, observation: Tree) -> Tensor:
        error: Tensor = self.layers(self.encode(observation))
        return error


class CausalBCLoss(LossCallback):
    """The policy's loss L_π; provides its error e.

    Args:
        residual: predicts errors.
        bc_weight: of the squared error: plain cloning.
    """

    provides = ("residual",)

    def __init__(
        self,
        network: DeterministicPolicy,
        optimizer: Optimizer | None,
        *,
        residual: Residual,
        bc_weight: float = 0.05,
        **options: Any,
    ) -> None:
        super().__init__(network, optimizer, **options)
        self.policy = network
        self.residual = residual
        self.bc_weight = bc_weight

    def loss(self, observation: Tree, action: Tree, valid: Tensor | None = None) -> LossResult:
        if valid is not None:
            raise ConfigError("causal_bc: wanted windows without repeated rows, which memory.short=pad adds")
        error = self.policy.codec.split(_row(action, -1))[0] - self.policy(_row(observation, -1))  # [B, A]
        with torch.no_grad():
            predicted = self.residual(_row(observation, 0))
        metrics = {"imitation/distance": Metric((error,), "squares")}
        loss = (2.0 * error * predicted + self.bc_weight * error.square()).sum(-1)
        return loss, {"residual": error.detach()}, metrics


class ResidualLoss(LossCallback):
    """The loss L_f: the squared distance of f to the policy's error, up to a constant, and a penalty.

    Args:
        penalty: on the root mean square of f.
    """

    def __init__(
        self, network: Residual, optimizer: Optimizer | None, *, penalty: float = 0.001, **options: Any
    ) -> None:
        super().__init__(network, optimizer, **options)
        self.penalty = penalty

    def loss(self, observation: Tree, residual: Tensor) -> Tensor:
        predicted = self.network(_row(observation, 0))  # [B, A]
        size = torch.linalg.vector_norm(predicted) / predicted.numel() ** 0.5
        loss: Tensor = (predicted.square() - 2.0 * residual * predicted).sum(-1) + self.penalty * size
        return loss


def _row(windows: Tree, step: int) -> Tree:
    """Return one row of each window: from [B, T, …] to [B, …]."""
    return map_tree(lambda value: value[:, step], windows)

"""Self-predictive representations (SPR, Schwarzer et al. 2020, arXiv 2007.05929), trained along with critics.

A model predicts the latents of the next K steps from that of an observation and from the actions between:

    f_0 = features(o_0),   f_k = h(f_{k-1}, a_{k-1})
    L   = Σ_k valid_k (1 - cos(q(g(f_k)), ḡ(features(o_k))))

g is the projection, q a linear predictor, and ḡ and its features are a target network's. Steps beyond the end of the
episode are not valid. Differences from the paper: features are rows of numbers, not scaled to [0, 1], so h is dense;
the target network moves slowly, not with tau 1; critics read changed images only with an adaptor.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlrun.callbacks.losses.loss import LossCallback, LossResult, Optimizer
from rlrun.callbacks.losses.target import TargetCallback, TargetResult
from rlrun.core.spaces import Space
from rlrun.core.typing import Tree
from rlrun.nn import MLP, Latent, flatten


class Prediction(nn.Module):
    """Latents of later observations, predicted from the first and from the actions between them.

    Args:
        latent: of observations.
        action: space of actions.
        hidden: widths of the layers of h.
    """

    def __init__(self, latent: Latent, *, action: Space, hidden: Sequence[int] = (256,)) -> None:
        super().__init__()
        self.latent, self.action = latent, action
        size = latent.features.size
        self.transition = MLP(size + action.size, size, hidden=hidden)
        self.predictor = nn.Linear(latent.size, latent.size)

    def forward(self, observation: Tree, action: Tree) -> Tensor:
        """Return q(g(f_k)) [..., K, Z] of observations [...] and actions [..., K]."""
        features = self.latent.features(observation)
        rows = []
        for numbers in flatten(self.action, action).unbind(-2):
            features = self.transition(torch.cat((features, numbers), -1))
            rows.append(features)
        latent: Tensor = self.predictor(self.latent.projection(torch.stack(rows, -2)))
        return latent


class LaterLatent(TargetCallback):
    """Provide the latents of later observations, by a target network of encoder and projection."""

    provides = ("later_latent",)

    def target(self, later: Tree) -> TargetResult:
        return {"later_latent": self.target_network(later)}, {}


class PredictionLoss(LossCallback):
    """1 minus the cosine of predicted and later latents, summed over the valid steps."""

    network: Prediction

    def __init__(self, network: Prediction, optimizer: Optimizer | None, **options: Any) -> None:
        super().__init__(network, optimizer, **options)
        self.prediction = network

    def loss(self, origin: Tree, later_action: Tree, later_latent: Tensor, later_valid: Tensor) -> LossResult:
        cosine = F.cosine_similarity(self.prediction(origin, later_action), later_latent, dim=-1)  # [B, K]
        similarity = (cosine.detach() * later_valid).sum() / later_valid.sum()
        loss = ((1.0 - cosine) * later_valid).sum(-1)
        return loss, {}, {"representation/prediction_similarity": similarity}

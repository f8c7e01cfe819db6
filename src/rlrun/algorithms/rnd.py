"""Random network distillation (Burda et al. 2018, arXiv 1810.12894): what cannot be predicted yet was rarely seen.

A network learns to predict the features that another, random and fixed one, finds in observations; its error is
large where observations are unlike those that it learned from. It pays for arriving: the bonus of a transition is
the error at the observation after it, the last of an episode included; what an episode begins with pays nothing.

Differences from the paper: bonuses are rewards like any other, so one value sums both and ends with the episode.
They are divided by the root mean square of all bonuses so far, not by the deviation of their returns.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rlrun.callbacks.intrinsic import BonusLoss
from rlrun.memory import Bonus
from rlrun.nn import MLP, Encoder
from rlrun.nn.init import Initialiser
from rlrun.nn.mlp import Activation
from rlrun.spaces import Spaces
from rlrun.typing import Batch, Tree


class Distillation(nn.Module):
    """A random network that never learns, and one that predicts it.

    Args:
        spaces: of the environment.
        hidden: widths of the random network's layers.
        further: widths of the layers that the other one has beyond those.
        features: how many numbers are predicted.
    """

    def __init__(
        self,
        spaces: Spaces,
        *,
        hidden: Sequence[int] = (128,),
        further: Sequence[int] = (128,),
        features: int = 64,
        activation: Activation = "relu",
        init: str | Initialiser = "orthogonal",
    ) -> None:
        super().__init__()

        def made(widths: Sequence[int]) -> nn.Sequential:
            encoder = Encoder(spaces, activation=activation, init=init)
            return nn.Sequential(encoder, MLP(encoder.size, features, hidden=widths, activation=activation, init=init))

        self.random = made(hidden).requires_grad_(False)
        self.predictor = made((*hidden, *further))

    def error(self, observation: Tree) -> Tensor:
        """Return the squared distance of prediction and random features [...] (section 2.2)."""
        with torch.no_grad():
            features = self.random(observation)  # [..., K]
        error: Tensor = (self.predictor(observation) - features).square().sum(-1)
        return error


class Novelty(Bonus):
    """The prediction's error at the observation that a transition leads to."""

    network: Distillation

    def view(self, step: Batch) -> Batch:
        return {"observation": self.seen(step["next_observation"])}

    def measure(self, view: Batch) -> Tensor:
        return self.network.error(view["observation"])


class NoveltyLoss(BonusLoss):
    """The same error, made small where the agent was."""

    network: Distillation

    def loss(self, rnd: Batch, valid: Tensor | None = None) -> Tensor:
        return self.counted(self.network.error(rnd["observation"]), valid, bonus=rnd["bonus"])

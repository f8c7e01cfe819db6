"""The intrinsic curiosity module (Pathak et al. 2017, arXiv 1705.05363): what one cannot foresee is worth a try.

Features of observations are those from which the action between two of them can be told (inverse model), so they
leave out what actions have no part in. The bonus of a transition is the error with which the features after it are
foretold from those before it and the action (forward model).

Differences from the paper: the forward model does not shape the features, as in ALF, and both losses count alike.
Bonuses are divided by their root mean square. Continuous actions are told by a squared distance.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from rlrun.callbacks.intrinsic import BonusLoss
from rlrun.memory import Bonus
from rlrun.nn import MLP, ActionCodec, Trunk, flatten
from rlrun.nn.init import Initialiser
from rlrun.nn.mlp import Activation
from rlrun.spaces import Spaces
from rlrun.typing import Batch, Tree


class Curiosity(nn.Module):
    """Features φ, the inverse and the forward model; any action space.

    Args:
        spaces: of the environment.
        hidden: widths of the features' layers.
        model: widths of the layers of each model.
    """

    def __init__(
        self,
        spaces: Spaces,
        *,
        hidden: Sequence[int] = (128, 128),
        model: Sequence[int] = (256,),
        activation: Activation = "relu",
        init: str | Initialiser = "orthogonal",
    ) -> None:
        super().__init__()
        self.codec = ActionCodec(spaces)
        self.features = Trunk(spaces, hidden=hidden, activation=activation, init=init)
        size, made = self.features.size, partial(MLP, hidden=model, activation=activation, init=init)
        self.foretell = made(size + spaces.action.size, size)
        self.tell = made(2 * size, self.codec.continuous + self.codec.width, output_gain=0.0)

    def forward_error(self, before: Tensor, action: Tree, after: Tensor) -> Tensor:
        """Return half the mean square [...] between features [..., F] after an action and those foretold (eq. 5)."""
        given = torch.cat((before, flatten(self.codec.space, action)), -1)
        error: Tensor = 0.5 * (self.foretell(given) - after).square().mean(-1)
        return error

    def inverse_error(self, before: Tensor, action: Tree, after: Tensor) -> Tensor:
        """Return how badly the action is told from features [..., F] before and after it: [...] (eq. 3).

        Minus the log-probability of choices, half the mean square of numbers.
        """
        told = self.tell(torch.cat((before, after), -1))
        numbers, logits = told.split((self.codec.continuous, self.codec.width), -1)
        c, k = self.codec.split(action)
        error: Tensor = told.new_zeros(told.shape[:-1])
        if c is not None:
            error = error + 0.5 * (numbers - c).square().mean(-1)
        return error if k is None else error - self.codec.select(self.codec.log_softmax(logits), k)


class Surprise(Bonus):
    """The error of the forward model."""

    requires = ("observation", "action", "next_observation")
    network: Curiosity

    def view(self, step: Batch) -> Batch:
        observations = {name: self.seen(step[name]) for name in ("observation", "next_observation")}
        return {**observations, "action": step["action"]}

    def measure(self, view: Batch) -> Tensor:
        before, after = (self.network.features(view[name]) for name in ("observation", "next_observation"))
        return self.network.forward_error(before, view["action"], after)


class CuriosityLoss(BonusLoss):
    """Errors of both models; only the inverse one shapes the features."""

    network: Curiosity

    def loss(self, icm: Batch, valid: Tensor | None = None) -> Tensor:
        before, after = (self.network.features(icm[name]) for name in ("observation", "next_observation"))
        inverse = self.network.inverse_error(before, icm["action"], after)
        forward = self.network.forward_error(before.detach(), icm["action"], after.detach())
        return self.counted(inverse + forward, valid, bonus=icm["bonus"], inverse=inverse, forward=forward)

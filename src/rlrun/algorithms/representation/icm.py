"""The intrinsic curiosity module (Pathak et al. 2017, arXiv 1705.05363): a bonus for unpredicted transitions.

The inverse model predicts the action between two observations from their features, so features may omit what actions do
not influence. The forward model predicts the features after a transition from those before it and the action. Its
error is the bonus.

    L     = -log p(a | φ(s), φ(s')) + ½ mean |f(φ(s), a) - φ(s')|²
    bonus = ½ mean |f(φ(s), a) - φ(s')|²

Differences from the paper: the forward model does not train the features, as in ALF, and both losses have weight 1.
Bonuses are divided by their root mean square. The inverse model predicts continuous actions by a squared distance.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from rlrun.callbacks.losses.loss import BonusLoss, LossResult
from rlrun.core.spaces import Spaces
from rlrun.core.typing import Batch, Tree
from rlrun.memory import Bonus
from rlrun.nn import InverseModel, flatten


class Curiosity(InverseModel):
    """An inverse model that trains the features, and a forward model that predicts them.

    Args:
        spaces: of the policy.
        stored: spaces of the memory, whose actions it reads; None = `spaces`.
        forward: any module from features and the action [..., F + A] to features, in place of the forward model.
        options: of `InverseModel`.
    """

    def __init__(
        self, spaces: Spaces, *, stored: Spaces | None = None, forward: nn.Module | None = None, **options: Any
    ) -> None:
        spaces = spaces if stored is None else replace(spaces, action=stored.action)
        super().__init__(spaces, **options)
        self.foretell = self.model(self.size + spaces.action.size, self.size, forward)

    def forward_error(self, before: Tensor, action: Tree, after: Tensor) -> Tensor:
        """Return half the mean squared error [...] of the predicted features [..., F] after an action (eq. 5)."""
        inputs = torch.cat((before, flatten(self.codec.space, action)), -1)
        error: Tensor = 0.5 * (self.foretell(inputs) - after).square().mean(-1)
        return error


class Surprise(Bonus):
    """A bonus: the error of the forward model."""

    requires = ("observation", "action", "next_observation")
    network: Curiosity

    def view(self, step: Batch) -> Batch:
        observations = {name: self.seen(step[name]) for name in ("observation", "next_observation")}
        return {**observations, "action": step["action"]}

    def measure(self, view: Batch) -> Tensor:
        before, after = (self.network.features(view[name]) for name in ("observation", "next_observation"))
        return self.network.forward_error(before, view["action"], after)


class CuriosityLoss(BonusLoss):
    """Errors of both models; only the inverse model trains the features."""

    network: Curiosity

    def loss(self, icm: Batch, valid: Tensor | None = None) -> LossResult:
        before, after = (self.network.features(icm[name]) for name in ("observation", "next_observation"))
        inverse = self.network.inverse_error(before, icm["action"], after)
        forward = self.network.forward_error(before.detach(), icm["action"], after.detach())
        return self.counted(inverse + forward, valid, bonus=icm["bonus"], inverse=inverse, forward=forward)

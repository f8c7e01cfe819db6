"""What the losses of soft policies have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rlrun import ops
from rlrun.callbacks.loss import LossCallback, Optimiser
from rlrun.errors import require_one_of
from rlrun.nn import Critics, ImplicitCritics, SoftPolicy, SquashedGaussian, Temperature, told_by
from rlrun.typing import Tree


class SoftPolicyLoss(LossCallback):
    """Minus the value of the policy's own actions and their entropy, which the temperature prices.

    Args:
        network: the policy.
        critics: who values its actions.
        temperature: α.
        guide: whose value counts: the first one's, the smallest, or the mean.

    Raises:
        ConfigError: there is no such guide.
    """

    provides = ("policy_entropy",)

    def __init__(
        self,
        network: SoftPolicy,
        optimiser: Optimiser,
        *,
        critics: Critics | ImplicitCritics,
        temperature: Temperature,
        guide: ops.Guide = "smallest",
        **options: Any,
    ) -> None:
        require_one_of("guide", guide, ops.GUIDES)
        super().__init__(network, optimiser, **options)
        self.policy = network
        self.critics = critics
        self.temperature = temperature
        self.guide = guide
        _, self.tells = told_by(critics)
        self._observation: Tree = None  # of the newest update

    def loss(self, observation: Tree, previous: Tree | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        self._observation = observation
        c, log_prob = self.policy.continuous(observation, previous)  # [B, A], [B]
        value = self.values(observation, c)
        entropies = [] if log_prob is None else [-log_prob.detach()]
        guiding = self.tells.guiding(value, self.guide)
        if self.policy.codec.discrete:
            choices = self.policy.choices(value.detach())
            entropies.append(-self.policy.codec.expect(choices.exp(), choices))
            guiding = self.policy.codec.expect(choices.exp(), guiding)  # [B, K] -> [B]
        loss = -guiding if log_prob is None else self.price() * log_prob - guiding
        return loss, {"policy_entropy": torch.stack(entropies, -1)}  # [B, parts]

    def values(self, observation: Tree, c: Tensor | None) -> Tensor:
        """Return values [M, B], or [M, B, K] of each choice; of several rewards [M, R, B] or [M, R, B, K]."""
        values: Tensor = self.critics(observation, c)
        return values

    def price(self) -> Tensor:
        """Return α of the continuous part: one number, or [B] for the actions that were valued last."""
        return self.temperature.of("continuous")

    @property
    @torch.no_grad()
    def metrics(self) -> Mapping[str, Any]:
        gaussian = self.policy.gaussian
        if self._observation is None or type(gaussian) is not SquashedGaussian:  # another's might draw numbers
            return super().metrics
        return {**super().metrics, "action/saturated": ops.saturated(gaussian.mode(self._observation))}

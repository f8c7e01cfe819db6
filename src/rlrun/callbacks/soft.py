"""What the losses of soft policies have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rlrun import ops
from rlrun.callbacks.loss import LossCallback, Optimiser
from rlrun.nn import Critics, ImplicitCritics, SoftPolicy, SquashedGaussian, Temperature
from rlrun.typing import Tree


class SoftPolicyLoss(LossCallback):
    """Minus the value of the policy's own actions and their entropy, which the temperature prices.

    Args:
        network: the policy.
        critics: who values its actions; the smallest value counts.
        temperature: α.
    """

    provides = ("policy_entropy",)

    def __init__(
        self,
        network: SoftPolicy,
        optimiser: Optimiser,
        *,
        critics: Critics | ImplicitCritics,
        temperature: Temperature,
        **options: Any,
    ) -> None:
        super().__init__(network, optimiser, **options)
        self.policy = network
        self.critics = critics
        self.temperature = temperature
        self._observation: Tree = None  # of the newest update

    def loss(self, observation: Tree) -> tuple[Tensor, dict[str, Tensor]]:
        self._observation = observation
        c, log_prob = self.policy.continuous(observation)  # [B, A], [B]
        value = self.values(observation, c)
        entropies = [] if log_prob is None else [-log_prob.detach()]
        minimum = value.amin(0)
        if self.policy.codec.discrete:
            choices = self.policy.choices(value.detach())
            entropies.append(-self.policy.codec.expect(choices.exp(), choices))
            minimum = self.policy.codec.expect(choices.exp(), minimum)  # [B, K] -> [B]
        loss = -minimum if log_prob is None else self.temperature.of("continuous") * log_prob - minimum
        return loss, {"policy_entropy": torch.stack(entropies, -1)}  # [B, parts]

    def values(self, observation: Tree, c: Tensor | None) -> Tensor:
        """Return values [M, B], or [M, B, K] of each choice, of which the smallest counts."""
        found: Tensor = self.critics(observation, c)
        return found

    @property
    @torch.no_grad()
    def metrics(self) -> Mapping[str, Any]:
        gaussian = self.policy.gaussian
        if self._observation is None or type(gaussian) is not SquashedGaussian:  # another's might draw numbers
            return super().metrics
        return {**super().metrics, "action/saturated": ops.saturated(gaussian.mode(self._observation))}

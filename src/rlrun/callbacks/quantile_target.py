"""What the targets of critics that tell quantiles have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from rlrun import ops
from rlrun.callbacks.target import TargetCallback
from rlrun.errors import require_one_of
from rlrun.nn import Critics, ImplicitCritics, SoftPolicy, Temperature, told_by
from rlrun.typing import Tree


class QuantileTarget(TargetCallback, ABC):
    """Quantiles of the return [B, N] from slow critics, at an action of a soft policy; a subclass writes `outcomes`.

    Args:
        least: of critics: the smallest of each quantile, all of the member with the smallest mean, or of each
            quantile the mean of members less their deviation.
        drawn: members of the critics, drawn at random for each target, of which the least counts; None = all.
        entropy_reward: whether the entropy of the action at the state that was reached counts.

    Raises:
        ConfigError: there is no such `least`, or there are fewer members than shall be drawn.
    """

    def __init__(
        self,
        critics: Critics | ImplicitCritics,
        policy: SoftPolicy,
        temperature: Temperature,
        *,
        least: ops.Least = "quantile",
        drawn: int | None = None,
        entropy_reward: bool = False,
        discount: float = 0.99,
        rate: float = 0.005,
        every: int = 1,
        data_group: str = "default",
    ) -> None:
        require_one_of("least", least, ops.LEAST)
        super().__init__(critics, discount=discount, rate=rate, every=every, data_group=data_group)
        self.draw_from(critics, drawn)
        self.told, _ = told_by(self.target)
        self.policy = policy
        self.temperature = temperature
        self.least = least
        self.entropy_reward = entropy_reward

    @torch.no_grad()
    def begin_batch(
        self,
        next_observation: Tree,
        reward: Tensor,
        terminated: Tensor,
        discount: Tensor | None = None,
        next_previous: Tree | None = None,
    ) -> dict[str, Tensor]:
        c, log_prob = self.policy.continuous(next_observation, next_previous)  # [B, A], [B]
        value, named = self.outcomes(next_observation, c)
        if self.entropy_reward and log_prob is not None:
            value = value - self.temperature.of("continuous") * log_prob.unsqueeze(-1)
        return {**self.bootstrap(reward, terminated, value, discount), **named}

    @abstractmethod
    def outcomes(self, observation: Tree, c: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the least quantiles of the slow critics, [B, N], and what else the loss is to know of them."""

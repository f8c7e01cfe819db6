"""Soft actor-critic whose critics tell quantiles (QR-SAC; Wurman et al. 2022, doi 10.1038/s41586-021-04357-7).

The critics learn as in quantile regression DQN (Dabney et al. 2018, arXiv 1710.10044), policy and temperature as in
soft actor-critic (arXiv 1812.05905). Actions are continuous.

    τ̂_j  = (j + 1/2) / N,  j = 0 … N-1
    Z̄(s) = least_i Q̄_i(s, c),  c ~ π(· | s),  N quantiles
    y_k  = r + γ (1 - terminated) Z̄_k(s')
    L_Q  = Σ_i mean_jk |τ̂_j - 1[u < 0]| h(u),  u = y_k - Q_ij(s, c),  h the Huber loss
    L_π  = α log π(c | s) - mean_j least_i Q_ij(s, c),  c ~ π(· | s)

`least` is the smallest of each quantile, or all quantiles of the critic with the smallest mean. With an entropy reward
y is lowered by γ α log π(c | s'), as in soft actor-critic; as published there is none.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlrun import ops
from rlrun.callbacks.critic import CriticLoss
from rlrun.callbacks.loss import Optimiser
from rlrun.callbacks.soft import SoftPolicyLoss
from rlrun.callbacks.target import TargetCallback
from rlrun.errors import ConfigError, did_you_mean
from rlrun.nn import Critics, Quantiles, SoftPolicy, Temperature, told_by
from rlrun.spaces import require_continuous
from rlrun.typing import Tree


class QTarget(TargetCallback):
    """Quantiles of the return from slowly moving critics.

    Args:
        least: of critics: the smallest of each quantile, or the member with the smallest mean.
        drawn: members of the critics, drawn at random for each target, of which the least counts; None = all.
        entropy_reward: whether the entropy of the action at the state that was reached counts.

    Raises:
        SpaceError: some part of the action is a choice.
        ConfigError: critics tell no quantiles, there is no such `least`, or there are fewer members.
    """

    def __init__(
        self,
        critics: Critics,
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
        require_continuous(policy.codec.space, "QRSAC")
        _check(critics, least)
        super().__init__(critics, discount=discount, rate=rate, every=every, data_group=data_group)
        self.draw(critics, drawn)
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
        value = ops.least_of(self.counting(self.told(next_observation, c)), by=self.least)  # [M, B, N] -> [B, N]
        if self.entropy_reward and log_prob is not None:
            value = value - self.temperature.of("continuous") * log_prob.unsqueeze(-1)
        return self.bootstrap(reward, terminated, value, discount)


class QLoss(CriticLoss):
    """Distance of each critic's quantiles to the common target's, summed over critics."""


class PolicyLoss(SoftPolicyLoss):
    """Minus the mean of the quantiles at the policy's own action, the least or the guide's, and minus its entropy.

    Args:
        least: as in the target.
    """

    def __init__(
        self,
        network: SoftPolicy,
        optimiser: Optimiser,
        *,
        critics: Critics,
        temperature: Temperature,
        least: ops.Least = "quantile",
        **options: Any,
    ) -> None:
        _check(critics, least)
        super().__init__(network, optimiser, critics=critics, temperature=temperature, **options)
        self.least = least

    def values(self, observation: Tree, c: Tensor | None) -> Tensor:
        told = self.critics.told(observation, c)  # [M, B, N]
        if self.guide == "smallest":
            told = ops.least_of(told, by=self.least).unsqueeze(0)
        return told.mean(-1)


def _check(critics: Critics, least: str) -> None:
    if not isinstance(critics.tells, Quantiles):
        raise ConfigError("QRSAC wants critics that tell quantiles: give algorithm.quantiles a number")
    if least not in ops.LEAST:
        words = ", ".join(ops.LEAST)
        raise ConfigError(f"least: wanted one of {words}, got '{least}'{did_you_mean(least, ops.LEAST)}")

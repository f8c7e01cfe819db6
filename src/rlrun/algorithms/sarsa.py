"""Sarsa from replayed steps (van Seijen et al. 2009, doi 10.1109/ADPRL.2009.4927542), for continuous actions.

What is learned is the value of the policy as it acts now, without a bonus for entropy in it:

    a'  ~ π(· | s')                                   the policy itself, not a slow copy
    y   = r + γ (1 - terminated) min_i Q̄_i(s', a')
    L_Q = Σ_i (Q_i(s, a) - y)²

The policy is that of soft actor-critic, whose loss and temperature stay what they are (`conf/algorithm/sarsa.yaml`),
or that of DDPG, whose action may have noise around it (`conf/algorithm/sarsa_ddpg.yaml`).

Differences from the paper: actions are numbers and values are networks, several critics of which the smallest counts;
the expectation over a' is a sample, drawn anew by the policy of today rather than taken from memory, so that old steps
serve, too. With `entropy_reward` each a' is paid for its entropy, and the target is that of soft actor-critic.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlrun.callbacks.target import TargetCallback
from rlrun.errors import SpaceError
from rlrun.nn import Critics
from rlrun.spaces import describe
from rlrun.typing import Tree


class QTarget(TargetCallback):
    """Bellman target from the policy's own next action and slow critics.

    Args:
        critics: what is followed.
        policy: with a temperature that of soft actor-critic, otherwise one that is sure of its action.
        temperature: α, where the policy draws actions.
        entropy_reward: whether the next action is paid for its entropy.
        noise: deviation of the noise around a next action that is sure; 0 = none.
        noise_limit: how large it is at most.

    Raises:
        SpaceError: part of the action is a choice.
    """

    def __init__(
        self,
        critics: Critics,
        policy: nn.Module,
        temperature: nn.Module | None = None,
        *,
        entropy_reward: bool = False,
        noise: float = 0.0,
        noise_limit: float = 0.5,
        discount: float = 0.99,
        rate: float = 0.005,
        every: int = 1,
        data_group: str = "default",
    ) -> None:
        if critics.codec.discrete:
            raise SpaceError(f"Sarsa is for actions that are numbers; here {describe(critics.codec.space)}")
        super().__init__(critics, discount=discount, rate=rate, every=every, data_group=data_group)
        self.policy = policy
        self.temperature = temperature
        self.entropy_reward = entropy_reward
        self.noise = noise
        self.noise_limit = noise_limit

    @torch.no_grad()
    def begin_batch(
        self,
        next_observation: Tree,
        reward: Tensor,
        terminated: Tensor,
        discount: Tensor | None = None,
        next_previous: Tree | None = None,
    ) -> dict[str, Tensor]:
        c, bonus = self._drawn(next_observation, next_previous)  # [B, A], [B]
        value = self.target(next_observation, c).amin(0)  # [M, B] -> [B]
        return self.bootstrap(reward, terminated, value if bonus is None else value + bonus, discount)

    def _drawn(self, observation: Tree, previous: Tree | None) -> tuple[Tensor, Tensor | None]:
        """Return an action of the policy, and what its entropy is paid."""
        if self.temperature is None:
            c: Tensor = self.policy(observation)
            if self.noise:
                noise = (self.noise * torch.randn_like(c)).clamp(-self.noise_limit, self.noise_limit)
                c = (c + noise).clamp(-1.0, 1.0)
            return c, None
        c, log_prob = self.policy.continuous(observation, previous)  # type: ignore[operator]
        return c, -self.temperature.of("continuous") * log_prob if self.entropy_reward else None  # type: ignore[operator]

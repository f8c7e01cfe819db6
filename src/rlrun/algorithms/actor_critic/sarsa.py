"""Sarsa from replayed steps (van Seijen et al. 2009, doi 10.1109/ADPRL.2009.4927542), for continuous actions.

The critics learn the value of the current policy, without an entropy bonus:

    a'  ~ π(· | s')                                   the policy itself, not a target network
    y   = r + γ (1 - terminated) min_i Q̄_i(s', a')
    L_Q = Σ_i (Q_i(s, a) - y)²

The policy is that of soft actor-critic, with its loss and temperature (`conf/algorithm/sarsa.yaml`), or that of DDPG,
with optional noise around its action (`conf/algorithm/sarsa_ddpg.yaml`).

Differences from the paper: actions are continuous; values are networks, and targets use the smallest of several
critics; the expectation over a' is a sample of the current policy, not from memory, so that old steps can be replayed.
With `entropy_reward` the target is that of soft actor-critic.
"""

from typing import Any

from torch import Tensor, nn

from rlrun import ops
from rlrun.callbacks.losses.target import EntropyReward, TargetCallback, TargetResult, less_cost, require_entropy_reward
from rlrun.core.errors import require_number
from rlrun.core.spaces import require_continuous
from rlrun.core.typing import Tree
from rlrun.nn import Critics


class SarsaTarget(TargetCallback):
    """Bellman target from the policy's own next action and target critics.

    Args:
        critics: have a target network.
        policy: with a temperature that of soft actor-critic, otherwise a deterministic one.
        temperature: α of a stochastic policy.
        entropy_reward: add the entropy of the next action; `centered`: minus its mean over the batch.
        noise: deviation of the noise around a deterministic next action; 0 = none.
        noise_limit: bound of this noise.
        target_subset: number of critics drawn at random for each target, which uses their smallest; None = all.
        options: of `TargetCallback`.

    Raises:
        SpaceError: part of the action is a choice.
        ConfigError: there are fewer members than `target_subset`.
    """

    def __init__(
        self,
        critics: Critics,
        policy: nn.Module,
        temperature: nn.Module | None = None,
        *,
        entropy_reward: EntropyReward = False,
        noise: float = 0.0,
        noise_limit: float = 0.5,
        target_subset: int | None = None,
        **options: Any,
    ) -> None:
        require_continuous(critics.codec.space, "Sarsa")
        require_entropy_reward(entropy_reward)
        for name, value in {"noise": noise, "noise_limit": noise_limit}.items():
            require_number(name, value, 0)
        super().__init__(critics, **options)
        self.draw_from(critics, target_subset)
        self.policy = policy
        self.temperature = temperature
        self.entropy_reward = entropy_reward
        self.noise = noise
        self.noise_limit = noise_limit

    def target(
        self,
        next_observation: Tree,
        reward: Tensor,
        terminated: Tensor,
        discount: Tensor | None = None,
        next_previous: Tree | None = None,
        valid: Tensor | None = None,
    ) -> TargetResult:
        c, cost = self._drawn(next_observation, next_previous)  # [B, A], [B]
        value = self.smallest(self.target_network(next_observation, c))  # [M, B] -> [B]
        value = value if cost is None else less_cost(value, cost, self.entropy_reward, valid)
        return self.bootstrap(reward, terminated, value, discount)

    def _drawn(self, observation: Tree, previous: Tree | None) -> tuple[Tensor, Tensor | None]:
        """Return an action of the policy, and the cost to subtract from its value: minus an entropy reward."""
        if self.temperature is None:
            return ops.smoothed(self.policy(observation), self.noise, self.noise_limit), None
        c, log_prob = self.policy.continuous(observation, previous)  # type: ignore[operator]
        if not self.entropy_reward:
            return c, None
        return c, self.temperature.of("continuous") * log_prob  # type: ignore[operator]

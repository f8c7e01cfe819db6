"""Implicit Q-learning (Kostrikov et al. 2021, arXiv 2110.06169): it evaluates stored actions only.

    A   = min_i Q̄_i(s, a) - V(s)
    L_V = |τ - [A < 0]| A²
    y   = r + γ (1 - terminated) V(s')
    L_Q = Σ_i (Q_i(s, a) - y)²
    L_π = -min(exp(A / temperature), limit) log π(a | s)

V approaches the expectile τ of the values of stored actions: their mean at τ = 1/2, nearly their maximum towards 1. The
policy imitates stored actions, the better ones more. It also learns online, from its own actions.

Differences from the paper: the temperature divides, 1 / β there; the policy's learning rate does not fall; all three
losses use the values before the update. Works on every action space: critics return the values of all choices.
With an entropy target the weighted entropy of the policy is subtracted from L_π (`rlrun.callbacks.losses.entropy`).
With a value of each reward, A is their weighted sum. It chooses τ or 1 - τ for all, so Σ w V is the expectile of Σ w Q.
"""

from typing import Any

from torch import Tensor

from rlrun import ops
from rlrun.callbacks.losses.loss import LossCallback, LossResult, Optimizer, require_bound
from rlrun.callbacks.losses.policy import with_entropy
from rlrun.callbacks.losses.target import TargetCallback, TargetResult
from rlrun.core.errors import ConfigError, require_number
from rlrun.core.typing import Tree
from rlrun.nn import Critics, Policy, Rewards, Value


class ImplicitQTarget(TargetCallback):
    """Bellman target from the value of the next state (eq. 6), and the target critics' value of the stored action.

    Args:
        critics: have target networks.
        value: V.
        options: of `TargetCallback`.
    """

    provides = ("q_target", "action_value")

    def __init__(self, critics: Critics, value: Value, **options: Any) -> None:
        super().__init__(critics, **options)
        self.draw_from(critics, None)
        self.codec = critics.codec
        self.several = isinstance(self.value_head, Rewards)
        self.value = value

    def target(
        self,
        observation: Tree,
        action: Tree,
        next_observation: Tree,
        reward: Tensor,
        terminated: Tensor,
        discount: Tensor | None = None,
    ) -> TargetResult:
        c, k = self.codec.split(action)
        value = self.target_network(observation, c)  # [M, B] or [M, B, K]; [M, R, …] of several rewards
        if k is not None:
            value = self.codec.select(value, k)  # without the axis of choices
        action_value, next_value = self.smallest(value), self.value(next_observation)
        if self.several:
            action_value, next_value = action_value.movedim(0, -1), next_value.movedim(-1, 0)  # [B, R], [R, B]
        outputs, metrics = self.bootstrap(reward, terminated, next_value, discount)
        return {**outputs, "action_value": action_value}, metrics


class ValueLoss(LossCallback):
    """Distance of the value to an expectile of action values (eq. 5); provides the action's advantage.

    Args:
        network: V.
        expectile: τ, from 0 to 1.

    Raises:
        ConfigError: the expectile is not between 0 and 1.
    """

    provides = ("advantage",)

    def __init__(self, network: Value, optimizer: Optimizer | None, *, expectile: float = 0.8, **options: Any) -> None:
        if not 0.0 < expectile < 1.0:
            raise ConfigError(f"expectile: wanted a number between 0 and 1, got {expectile}")
        super().__init__(network, optimizer, **options)
        self.expectile = expectile
        self.rewards: Rewards | None = getattr(network, "rewards", None)

    def loss(self, observation: Tree, action_value: Tensor) -> LossResult:
        value = self.network(observation)  # [B], or [B, R] of several rewards
        advantage = difference = action_value - value.detach()
        if self.rewards is not None:
            advantage = self.rewards.weighed(difference, axis=-1)
        distance = ops.expectile_distance(value, action_value, expectile=self.expectile, advantage=advantage)
        return distance, {"advantage": advantage}, {}


class AdvantageWeightedLoss(LossCallback):
    """Minus the log-likelihood of the stored action, weighted by exp(advantage / temperature) (eq. 7).

    Args:
        temperature: divides advantages; a larger one is nearer to cloning.
        limit: largest weight.
        edge: distance that continuous actions are kept from their bounds, see `rlrun.algorithms.imitation.bc`.

    Raises:
        ConfigError: the temperature is not above 0.
    """

    provides = ("policy_entropy",)

    def __init__(
        self,
        network: Policy,
        optimizer: Optimizer | None,
        *,
        temperature: float = 1.0,
        limit: float = 100.0,
        edge: float = 0.01,
        **options: Any,
    ) -> None:
        if not temperature > 0.0:
            raise ConfigError(f"temperature: wanted a number above 0, got {temperature}")
        super().__init__(network, optimizer, **options)
        self.policy = network
        self.temperature = temperature
        require_bound("limit", limit)
        require_number("edge", edge, 0, 0.5)
        self.limit = limit
        self.edge = edge

    def loss(
        self, observation: Tree, action: Tree, advantage: Tensor, entropy_weight: float | Tensor | None = None
    ) -> LossResult:
        weight = (advantage / self.temperature).exp().clamp(max=self.limit)  # [B]
        heads = self.policy.heads(observation)
        metrics = {"imitation/weight": weight, "imitation/limited": weight >= self.limit}
        log_prob = self.policy.head.log_prob(heads, action, edge=self.edge)
        loss = -weight * self.policy.codec.without_forbidden(log_prob, heads.choices, action)
        loss, outputs, further = with_entropy(loss, self.policy, heads, entropy_weight)
        return loss, outputs, {**metrics, **further}

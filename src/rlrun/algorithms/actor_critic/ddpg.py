"""Deep deterministic policy gradients (Lillicrap et al. 2015, arXiv 1509.02971), for continuous actions.

    ã   = clip(μ̄(s') + clip(N(0, σ), -limit, limit), -1, 1)
    y   = r + γ (1 - terminated) min_i Q̄_i(s', ã)
    L_Q = Σ_i (Q_i(s, a) - y)²
    L_μ = -Q(s, μ(s)) + weight |μ(s)|²

This is the paper with one critic and σ = 0. The three additions of TD3 (Fujimoto et al. 2018, arXiv 1802.09477) are
options: the smallest of several critics in y (section 4), noise σ around the target's action (eq. 14), and updates of
policy and target networks at every second update only (section 5.2). The policy follows the first critic, as there,
the smallest, or the mean.

Difference from the papers: the random actions of the warm-up are uniform plus exploration noise, as in
stable-baselines3, so some lie on a bound.
"""

from typing import Any

from torch import Tensor, nn

from rlrun import ops
from rlrun.callbacks.losses.loss import LossCallback, LossResult, Optimizer
from rlrun.callbacks.losses.target import TargetCallback, TargetResult
from rlrun.core.errors import require_number, require_one_of
from rlrun.core.typing import Tree
from rlrun.nn import Critics, DeterministicPolicy, value_head_of
from rlrun.training.metrics import Metric


class DeterministicQTarget(TargetCallback):
    """Bellman target from target networks of critics and policy.

    Args:
        critics: have a target network.
        policy: has a target network, too.
        noise: deviation of the noise around the target policy's action, σ; 0 = none.
        noise_limit: bound of this noise.
        target_subset: number of critics drawn at random for each target, which uses their smallest; None = all.
        options: of `TargetCallback`.

    Raises:
        ConfigError: there are fewer members than `target_subset`.
    """

    def __init__(
        self,
        critics: Critics,
        policy: DeterministicPolicy,
        *,
        noise: float = 0.0,
        noise_limit: float = 0.5,
        target_subset: int | None = None,
        **options: Any,
    ) -> None:
        for name, value in {"noise": noise, "noise_limit": noise_limit}.items():
            require_number(name, value, 0)
        both = nn.ModuleDict({"critics": critics, "policy": policy})
        super().__init__(both, **options)
        self.draw_from(critics, target_subset)
        self.followed = (critics, policy)
        self.noise = noise
        self.noise_limit = noise_limit

    def target(
        self, next_observation: Tree, reward: Tensor, terminated: Tensor, discount: Tensor | None = None
    ) -> TargetResult:
        target_critics, target_policy = (self.target_network.get_submodule(name) for name in ("critics", "policy"))
        c = ops.smoothed(target_policy(next_observation), self.noise, self.noise_limit)  # [B, A]
        value = self.smallest(target_critics(next_observation, c))  # [M, B] -> [B]
        return self.bootstrap(reward, terminated, value, discount)


class DeterministicPolicyLoss(LossCallback):
    """Minus the value of the policy's own action (1509.02971 eq. 6).

    Args:
        critics: of its actions.
        actor_q: the critics' value in the loss: the first, the smallest, or the mean.
        action_weight: of the squared size of actions, which keeps them off the bounds.
        action_gradient_clip: clamp the gradient of the value by the action to ± this; None = never.

    Raises:
        ConfigError: there is no such actor_q.
    """

    def __init__(
        self,
        network: DeterministicPolicy,
        optimizer: Optimizer | None,
        *,
        critics: Critics,
        actor_q: ops.ActorQ = "first",
        action_weight: float = 0.0,
        action_gradient_clip: float | None = None,
        **options: Any,
    ) -> None:
        require_one_of("actor_q", actor_q, ops.ACTOR_Q)
        require_number("action_weight", action_weight, 0)
        super().__init__(network, optimizer, **options)
        self.policy = network
        self.critics = critics
        self.actor_q = actor_q
        _, self.value_head = value_head_of(critics)
        self.action_weight = action_weight
        self.action_gradient_clip = action_gradient_clip

    def loss(self, observation: Tree) -> LossResult:
        c = self.policy(observation)  # [B, A]
        value = self.value_head.guiding(self.critics(observation, c), self.actor_q)  # [M, B] -> [B]
        if self.action_gradient_clip is not None:
            value = ops.with_gradient_clipped(value, c, self.action_gradient_clip)
        loss = -value
        if self.action_weight:
            loss = loss + self.action_weight * c.square().sum(-1)
        return loss, {}, {"action/saturated": Metric((c,), "saturated")}

"""Advantage actor-critic (Mnih et al. 2016, arXiv 1602.01783), its synchronous form.

Each rollout gives one gradient step. Advantages are generalized advantage estimates (arXiv 1506.02438); with λ = 1 they
are the paper's: returns, bootstrapped at the end of the rollout, minus values.

    L = -log π(a | s) A + w_V (V(s) - R)² - w_H H(π(· | s))
"""

from torch import Tensor

from rlrun.callbacks.losses.loss import LossResult
from rlrun.callbacks.losses.policy import ActorCriticLoss
from rlrun.core.typing import Tree


class A2CLoss(ActorCriticLoss):
    """Policy gradient, value loss and entropy bonus (section 4.2)."""

    def loss(
        self,
        observation: Tree,
        action: Tree,
        advantage: Tensor,
        return_: Tensor,
        entropy_weight: float | Tensor | None = None,
        state: Tensor | None = None,
        episode_end: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> LossResult:
        evaluated = self.evaluate_actions(observation, action, state, episode_end)
        objective = evaluated.log_prob * self.prepared(advantage, valid)
        distance = self.distance(evaluated.value, return_)
        return self.total(evaluated, objective, distance, return_, entropy_weight, valid)

"""Phasic policy gradient (Cobbe et al. 2020, arXiv 2009.04416).

The policy phase is PPO, with its loss. After every few rollouts an auxiliary phase trains on all of their rows: the
policy's layers learn to predict values, too, by an auxiliary head, while a KL penalty keeps the policy (section 2).
Only this phase uses the auxiliary head.

With `shared`, policy and value have the same layers, but the value head's gradient does not reach them in either phase,
as in the authors' code; otherwise the value has its own layers.

    L_aux = w [(V_aux(s) - R)² + (V(s) - R)²] + β KL(π_old(· | s) ‖ π(· | s))
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rlrun import ops
from rlrun.callbacks.losses.loss import LossCallback, LossResult, Optimizer, require_bound
from rlrun.core.errors import ConfigError, require_number
from rlrun.core.spaces import Spaces
from rlrun.core.typing import Tree
from rlrun.memory import PhasicLoader
from rlrun.nn import ActorCritic, Evaluated, Follow, Heads, frozen_copy
from rlrun.nn.mlp import orthogonal_


class Reviewed(NamedTuple):
    """The policy and both values of observations."""

    heads: Heads
    value: Tensor  # [...], or [..., R] of several rewards
    auxiliary: Tensor  # likewise; predicted from the policy's layers


class PhasicActorCritic(ActorCritic):
    """An actor-critic with a second, auxiliary value on the policy's layers.

    Args:
        spaces: of the environment.
        options: of `ActorCritic`.

    Raises:
        ConfigError: the policy is a plain module (`layers`), which has no features for the second value.
    """

    by_turns = True  # two losses train it, each in its own phase

    def __init__(self, spaces: Spaces, **options: Any) -> None:
        super().__init__(spaces, **options)
        if self.own:
            raise ConfigError("PPG's policy gives values, too, so it cannot be a plain module; encoder=… takes one")
        self.auxiliary_head = nn.Linear(self.trunk.size, self.further)
        orthogonal_(self.auxiliary_head, 1.0)

    def evaluate_actions(
        self, observation: Tree, action: Tree, state: Tensor | None = None, episode_end: Tensor | None = None
    ) -> Evaluated:
        own, valued = self._parts(state)
        features = self.trunk(observation, own, episode_end)
        heads = self.head(features, observation)
        return self._evaluated(heads, action, self._value(features, observation, valued, episode_end))

    def review(self, observation: Tree, state: Tensor | None = None, episode_end: Tensor | None = None) -> Reviewed:
        """Return the policy and both values by one pass; state and episode_end as in `evaluate_actions`."""
        own, valued = self._parts(state)
        features = self.trunk(observation, own, episode_end)
        auxiliary = self._laid_out(self.auxiliary_head(features))
        return Reviewed(
            self.head(features, observation), self._value(features, observation, valued, episode_end), auxiliary
        )

    def _value(self, features: Tensor, observation: Tree, state: Tensor | None, episode_end: Tensor | None) -> Tensor:
        below = features.detach() if self.value_trunk is None else self.value_trunk(observation, state, episode_end)
        return self._laid_out(self.value_head(below))


class AuxiliaryLoss(LossCallback):
    """The auxiliary phase's loss: errors of both values, and KL from the policy at its beginning (eqs. 3 and 4).

    Args:
        network: policy and values; its optimizer here is not the policy phase's.
        loader: counts the minibatches of a phase.
        value_weight: w.
        kl_weight: β.
        huber: from this distance on the losses grow linearly; None = squared.
        data_group: of the batches of the phase.
    """

    def __init__(
        self,
        network: PhasicActorCritic,
        optimizer: Optimizer | None,
        *,
        loader: PhasicLoader,
        value_weight: float = 0.5,
        kl_weight: float = 1.0,
        huber: float | None = None,
        data_group: str = "auxiliary",
        **options: Any,
    ) -> None:
        super().__init__(network, optimizer, data_group=data_group, **options)
        for name, weight in {"value_weight": value_weight, "kl_weight": kl_weight}.items():
            require_number(name, weight, 0)
        require_bound("huber", huber)
        self.actor_critic = network
        self.before = frozen_copy(network)
        self.loader = loader
        self.value_weight = value_weight
        self.kl_weight = kl_weight
        self.huber = huber
        self._follow = Follow(self.before, network)

    def begin_batch(self) -> None:
        if self.loader.phase.number == 1:  # the first minibatch of a phase
            self._follow.move()

    def loss(
        self,
        observation: Tree,
        return_: Tensor,
        state: Tensor | None = None,
        episode_end: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> LossResult:
        reviewed = self.actor_critic.review(observation, state, episode_end)
        with torch.no_grad():
            before = self.before.heads(observation, state, episode_end)
        divergence = self.actor_critic.head.divergence(before, reviewed.heads)
        auxiliary = ops.distance(reviewed.auxiliary, return_, huber=self.huber)
        distance = auxiliary + ops.distance(reviewed.value, return_, huber=self.huber)
        distance = distance if self.actor_critic.rewards is None else distance.mean(-1)
        loss = self.value_weight * distance + self.kl_weight * divergence
        metrics = {"auxiliary/kl": divergence, "auxiliary/distance": auxiliary}
        return loss if valid is None else ops.over_valid(loss, valid), {}, metrics

    def note(self, path_of: Callable[[object], str]) -> str:
        return f"{super().note(path_of)}, in phases"

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "before": self.before.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.before.load_state_dict(state["before"])

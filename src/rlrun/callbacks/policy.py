"""Losses of soft policies, and of actor-critic methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from rlrun import ops
from rlrun.callbacks.loss import LossCallback, Optimizer
from rlrun.core.errors import require_one_of
from rlrun.core.typing import Tree
from rlrun.nn import (
    ActionHead,
    ActorCritic,
    Critics,
    Evaluated,
    ImplicitCritics,
    SoftPolicy,
    SquashedGaussian,
    Temperature,
    value_head_of,
)


class SoftPolicyLoss(LossCallback):
    """Minus the value of the policy's own actions and of their entropy, weighted by the temperature.

    Args:
        network: the policy.
        critics: of its actions.
        temperature: α.
        actor_q: the value that counts: of the first critic, the smallest, or the mean.

    Raises:
        ConfigError: there is no such actor_q.
    """

    provides = ("policy_entropy",)

    def __init__(
        self,
        network: SoftPolicy,
        optimizer: Optimizer,
        *,
        critics: Critics | ImplicitCritics,
        temperature: Temperature,
        actor_q: ops.ActorQ = "min",
        **options: Any,
    ) -> None:
        require_one_of("actor_q", actor_q, ops.ACTOR_Q)
        super().__init__(network, optimizer, **options)
        self.policy = network
        self.critics = critics
        self.temperature = temperature
        self.actor_q = actor_q
        _, self.value_head = value_head_of(critics)
        self._observation: Tree = None  # of the newest update

    def loss(self, observation: Tree, previous: Tree | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        self._observation = observation
        c, log_prob = self.policy.continuous(observation, previous)  # [B, A], [B]
        value = self.values(observation, c)
        entropies = [] if log_prob is None else [-log_prob.detach()]
        actor_values = self.value_head.guiding(value, self.actor_q)
        if self.policy.codec.discrete:
            choices = self.policy.choices(value.detach())
            entropies.append(-self.policy.codec.expect(choices.exp(), choices))
            actor_values = self.policy.codec.expect(choices.exp(), actor_values)  # [B, K] -> [B]
        loss = -actor_values if log_prob is None else self.price() * log_prob - actor_values
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
        if self._observation is None or type(gaussian) is not SquashedGaussian:  # others might draw numbers
            return super().metrics
        return {**super().metrics, "action/saturated": ops.saturated(gaussian.mode(self._observation))}


class ActorCriticNetwork(Protocol):
    """The methods that on-policy losses need of their network; subclasses of `rlrun.nn.ActorCritic` have them all."""

    head: ActionHead  # the distribution of actions
    state_size: int  # 0; in a recurrent network the size S of its state: see `rlrun.nn`

    def act(self, observation: Tree, explore: bool) -> Tree:
        """Return an action for observations [B, …]."""

    def evaluate_actions(self, observation: Tree, action: Tree) -> Evaluated:
        """Return log_prob [B] of actions, value [B], and the distributions there."""

    def value(self, observation: Tree) -> Tensor:
        """Return values [B] of observations."""


class ActorCriticLoss(LossCallback):
    """An objective to maximize, the distance of values to returns, and a bonus for entropy.

    A subclass writes `loss`, and returns `total`. It may ask for `entropy_weight`, a number or one for each part of the
    action: a schedule or an entropy target then replaces the constant. For recurrent networks it asks for `state`,
    `episode_end` and `valid`, which a loader of rollouts provides.

    Args:
        network: policy and values.
        value_weight: of the distance between value and return.
        entropy_weight: of the entropy; 0 = no bonus.
        normalize: give the advantages of each minibatch mean 0 and standard deviation 1.
        advantage_clip: then clamp them to ± this; None = never.
        huber: from this distance on the value loss grows linearly; None = squared.
    """

    provides: tuple[str, ...] = ("policy_entropy",)

    def __init__(
        self,
        network: ActorCritic,
        optimizer: Optimizer,
        *,
        value_weight: float = 0.5,
        entropy_weight: float = 0.0,
        normalize: bool = False,
        advantage_clip: float | None = None,
        huber: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(network, optimizer, **options)
        self.actor_critic = network
        self.value_weight = value_weight
        self.entropy_weight = entropy_weight
        self.normalize = normalize
        self.advantage_clip = advantage_clip
        self.huber = huber
        # of the newest update, with returns, and which entries count
        self._newest: tuple[Evaluated, Tensor, Tensor | None] | None = None

    def evaluate_actions(
        self, observation: Tree, action: Tree, state: Tensor | None = None, episode_end: Tensor | None = None
    ) -> Evaluated:
        """Return the network's evaluation of rows [B, …] or windows [B, T, …].

        state: [B, S], before the windows; episode_end: [B, T].
        """
        if state is None and episode_end is None:
            return self.actor_critic.evaluate_actions(observation, action)
        return self.actor_critic.evaluate_actions(observation, action, state, episode_end)

    def prepared(self, advantage: Tensor, valid: Tensor | None = None) -> Tensor:
        """Return advantages, normalized and clipped for the objective."""
        if self.normalize:
            advantage = ops.normalized(advantage, valid)
        return advantage if self.advantage_clip is None else advantage.clamp(-self.advantage_clip, self.advantage_clip)

    def total(
        self,
        evaluated: Evaluated,
        objective: Tensor,
        distance: Tensor,
        return_: Tensor,
        entropy_weight: float | Tensor | None = None,
        valid: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each element, and `policy_entropy` [..., parts] if it is asked for.

        valid: [B, T], True for transitions; other rows have no weight in the mean.
        """
        self._newest = (evaluated, return_, valid)
        loss = self.value_weight * distance - objective
        weight = self.entropy_weight if entropy_weight is None else entropy_weight
        weighs = isinstance(weight, Tensor) or weight != 0.0
        entropy = evaluated.entropy if weighs or self.asked_for("policy_entropy") else None
        if entropy is not None and weighs:
            loss = loss - (weight * entropy).sum(-1)
        if valid is not None:
            loss = ops.over_valid(loss, valid)
        return loss, {} if entropy is None else {"policy_entropy": entropy.detach()}

    @property
    @torch.no_grad()
    def metrics(self) -> Mapping[str, Any]:
        metrics = dict(super().metrics)
        if self._newest is not None:
            evaluated, return_, valid = self._newest
            shown = (evaluated.entropy, evaluated.value, return_)
            entropy, value, return_ = shown if valid is None else (tensor[valid] for tensor in shown)
            for index, part in enumerate(self.actor_critic.head.parts):
                metrics[f"entropy/{part}"] = entropy[..., index].mean()
            mean = evaluated.heads.mean
            if mean is not None:
                metrics["action/saturated"] = ops.saturated((mean if valid is None else mean[valid]).tanh())
            metrics["value/mean"] = value.mean()
            unexplained = (return_ - value).var() / return_.var().clamp(min=1e-12)
            metrics["value/explained_variance"] = 1.0 - unexplained
        return metrics

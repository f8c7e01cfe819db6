"""Losses of soft policies, and of actor-critic methods."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from rlrun import ops
from rlrun.callbacks.losses.loss import LossCallback, LossResult, Optimizer, require_bound, require_distance
from rlrun.core.errors import ConfigError, WiringError, require_number, require_one_of
from rlrun.core.spaces import describe
from rlrun.core.typing import Tree
from rlrun.nn import (
    ActionHead,
    ActorCritic,
    Critics,
    DetachedEncoder,
    Evaluated,
    Heads,
    ImplicitCritics,
    Policy,
    Rewards,
    SoftPolicy,
    Temperature,
    value_head_of,
)
from rlrun.training.callback import Callback, trained_by
from rlrun.training.metrics import Metric


class SoftPolicyLoss(LossCallback):
    """Minus the value of the policy's own actions and of their entropy, weighted by the temperature.

    A callback that provides `entropy_weight`, a number or one for each part, sets the temperature of the next update.

    Args:
        network: the policy.
        critics: of its actions.
        temperature: α.
        actor_q: the critics' value in the loss: the first, the smallest, or the mean.
        action_gradient_clip: clamp the gradient of the value by the action to ± this; None = never.

    Raises:
        ConfigError: there is no such actor_q.
        WiringError: the temperature has another value already, or leaves have weights of their own.
    """

    provides = ("policy_entropy",)

    def __init__(
        self,
        network: SoftPolicy,
        optimizer: Optimizer | None,
        *,
        critics: Critics | ImplicitCritics,
        temperature: Temperature,
        actor_q: ops.ActorQ = "min",
        action_gradient_clip: float | None = None,
        **options: Any,
    ) -> None:
        require_one_of("actor_q", actor_q, ops.ACTOR_Q)
        super().__init__(network, optimizer, **options)
        self.policy = network
        self.action_gradient_clip = action_gradient_clip
        self.critics = critics
        self.temperature = temperature
        self.actor_q = actor_q
        _, self.value_head = value_head_of(critics)

    def require_peers(self, callbacks: Mapping[str, Callback]) -> None:
        sources = [source for source in callbacks.values() if "entropy_weight" in source.provides]
        learns = [peer.name for peer in callbacks.values() for part in trained_by(peer) if part is self.temperature.log]
        for source in sources:
            if learns or self.temperature.epistemic is not None:
                remedy = f"remove ~callbacks.{learns[0]}" if learns else "remove algorithm.temperature.epistemic"
                raise WiringError(f"callbacks.{source.name} sets the temperature, which has another source; {remedy}")
            kinds, parts = getattr(source, "kinds", self.temperature.parts), self.temperature.parts
            if kinds != parts:
                wrong, wanted = ", ".join(kinds), ", ".join(parts)
                raise WiringError(f"callbacks.{source.name} weighs {wrong}; here there is a temperature of {wanted}")
            space, own = getattr(getattr(source, "targets", None), "space", None), self.policy.codec.space
            if space is not None and describe(space) != describe(own):
                wrong = f"callbacks.{source.name}.spaces: its targets are for {describe(space)}"
                raise WiringError(f"{wrong}, the policy chooses {describe(own)}; give ${{networks.policy.spaces}}")
            self.temperature.log.requires_grad_(False)  # no loss learns it

    def loss(
        self, observation: Tree, previous: Tree | None = None, entropy_weight: float | Tensor | None = None
    ) -> LossResult:
        c, log_prob = self.policy.continuous(observation, previous)  # [B, A], [B]
        value, alpha = self.values(observation, c)
        entropies = [] if log_prob is None else [-log_prob.detach()]
        actor_values = self.value_head.guiding(value, self.actor_q)
        if self.policy.codec.discrete:
            choices, less_prior = self.policy.choices(value.detach(), observation)
            entropies.append(-self.policy.codec.expect(choices.exp(), less_prior))
            actor_values = self.policy.codec.expect(choices.exp(), actor_values)  # [B, K] -> [B]
        if c is not None and self.action_gradient_clip is not None:
            actor_values = ops.with_gradient_clipped(actor_values, c, self.action_gradient_clip)
        loss = -actor_values if log_prob is None or alpha is None else alpha * log_prob - actor_values
        metrics: dict[str, Any] = {} if c is None else {"action/saturated": Metric((c,), "saturated")}
        if alpha is not None and alpha.dim():
            metrics["temperature/continuous"] = alpha  # of each action
        outputs: dict[str, Any] = {"policy_entropy": torch.stack(entropies, -1)}  # [B, parts]
        if entropy_weight is not None:
            log = (torch.zeros_like(self.temperature.log) + entropy_weight).log()
            largest = self.temperature.largest
            outputs["updates"] = {"temperature.log": log if largest is None else log.clamp(max=largest)}
            metrics |= {f"entropy/{part}": of for part, of in zip(self.temperature.parts, entropies, strict=True)}
        return loss, outputs, metrics

    def values(self, observation: Tree, c: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return values [M, B], or [M, B, K] of each choice, and α of the continuous part: one number, or [B].

        Of several rewards values are [M, R, B] or [M, R, B, K]; without a continuous part α is None.
        """
        return self.critics(observation, c), None if c is None else self.temperature.of("continuous")


class SharedEncoder(Callback):
    """Refuse a policy that does not read the encoder of its critics.

    Raises:
        ConfigError: no part of the policy is a `DetachedEncoder`.
    """

    def __init__(self, policy: nn.Module) -> None:
        if not any(isinstance(part, DetachedEncoder) for part in policy.modules()):
            raise ConfigError(f"a {type(policy).__name__} has no encoder here; remove +with=shared_encoder")


class ActorCriticNetwork(Protocol):
    """Interface of `rlrun.nn.ActorCritic` for on-policy losses; a plain nn.Module returns (means or logits, value)."""

    head: ActionHead  # the distribution of actions
    state_size: int  # 0; in a recurrent network the size S of its state, or a tree of shapes: see `rlrun.nn`

    def act(self, observation: Tree, explore: bool) -> Tree:
        """Return an action for observations [B, …]."""

    def evaluate_actions(self, observation: Tree, action: Tree) -> Evaluated:
        """Return log_prob [B] of actions, value [B], and the distributions there."""

    def value(self, observation: Tree) -> Tensor:
        """Return values [B] of observations."""


class ActorCriticLoss(LossCallback):
    """The loss of policy and values: minus an objective, plus the distance of values to returns, minus entropy.

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
        distance: function of values and returns in its place, such as `torch.nn.SmoothL1Loss(reduction="none")`.
    """

    provides: tuple[str, ...] = ("policy_entropy",)
    requested_names: frozenset[str] | None = None  # names in `provides` that are read; None = no plan yet

    def __init__(
        self,
        network: ActorCritic,
        optimizer: Optimizer | None,
        *,
        value_weight: float = 0.5,
        entropy_weight: float = 0.0,
        normalize: bool = False,
        advantage_clip: float | None = None,
        huber: float | None = None,
        distance: ops.Distance | None = None,
        **options: Any,
    ) -> None:
        super().__init__(network, optimizer, **options)
        for name, weight in {"value_weight": value_weight, "entropy_weight": entropy_weight}.items():
            require_number(name, weight, 0)
        require_bound("advantage_clip", advantage_clip)
        require_distance(distance, huber)
        self.actor_critic = network
        self.value_weight = value_weight
        self.entropy_weight = entropy_weight
        self.normalize = normalize
        self.advantage_clip = advantage_clip
        self.distance = distance or partial(ops.distance, huber=huber)
        self.rewards: Rewards | None = getattr(network, "rewards", None)

    def asked_for(self, name: str) -> bool:
        """Return True if a hook may read this name of `provides`."""
        return self.requested_names is None or name in self.requested_names

    def evaluate_actions(
        self, observation: Tree, action: Tree, state: Tensor | None = None, episode_end: Tensor | None = None
    ) -> Evaluated:
        """Return the network's evaluation of rows [B, …] or windows [B, T, …].

        state: [B, S] at the start of the windows; episode_end: [B, T].
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
    ) -> LossResult:
        """Return the loss of each element, `policy_entropy` [..., parts] if a hook reads it, and metrics.

        valid: [B, T], True for transitions; other rows have weight 0 in the mean.
        """
        distance = distance if self.rewards is None else distance.mean(-1)  # over rewards
        loss = self.value_weight * distance - objective
        weight = self.entropy_weight if entropy_weight is None else entropy_weight
        weighs = isinstance(weight, Tensor) or weight != 0.0
        leaves = isinstance(weight, Tensor) and weight.dim() > 0 and len(weight) > len(evaluated.head.parts)
        entropy = evaluated.entropy if not leaves and (weighs or self.asked_for("policy_entropy")) else None
        entropy = evaluated.leaf_entropy if leaves else entropy
        if entropy is not None and weighs:
            loss = loss - (weight * entropy).sum(-1)
        if valid is not None:
            loss = ops.over_valid(loss, valid)
        outputs = {} if entropy is None else {"policy_entropy": entropy.detach()}
        return loss, outputs, self._metrics(evaluated, entropy, return_, valid)

    def _metrics(
        self, evaluated: Evaluated, entropy: Tensor | None, return_: Tensor, valid: Tensor | None
    ) -> dict[str, Any]:
        shown = getattr(evaluated, "shown", {})  # a user's network may lack it
        metrics: dict[str, Any] = {name: Metric((part,), valid=valid) for name, part in shown.items()}
        head = evaluated.head
        leaves = entropy is not None and entropy.shape[-1] > len(head.parts)
        for index, part in enumerate(head.codec.names(leaves=True) if leaves else head.parts):
            if entropy is not None:
                metrics[f"entropy/{part}"] = Metric((entropy[..., index],), valid=valid)
            else:  # computed when it is read
                parts = (*evaluated.heads, evaluated.noise)
                tensors = tuple(tensor for tensor in parts if tensor is not None)
                present = tuple(tensor is not None for tensor in parts)
                metrics[f"entropy/{part}"] = Metric(tensors, partial(_mean_entropy, head, present, index), valid)
        if evaluated.heads.mean is not None:
            metrics["action/saturated"] = Metric((evaluated.heads.mean,), "saturated_mean", valid)
        value = evaluated.value
        if self.rewards is not None:
            means = {f"value/mean_{index}": part for index, part in enumerate(value.unbind(-1))}
            metrics |= {name: Metric((part,), valid=valid) for name, part in means.items()}
            value, return_ = (self.rewards.weighed(part, axis=-1) for part in (value, return_))
        metrics["value/mean"] = Metric((value,), valid=valid)
        metrics["value/explained_variance"] = Metric((value, return_), "explained_variance", valid)
        return metrics


def with_entropy(loss: Tensor, policy: Policy, heads: Heads, entropy_weight: float | Tensor | None) -> LossResult:
    """Return a loss [...] minus the weighted entropy of a policy's parts or leaves, with entropies as metrics.

    entropy_weight: one number, [parts] or [leaves]; None = return the loss unchanged.
    """
    if entropy_weight is None:
        return loss, {}, {}
    leaves = isinstance(entropy_weight, Tensor) and len(entropy_weight) > len(policy.head.parts)
    entropy = policy.head.leaf_entropy(heads) if leaves else policy.head.entropy(heads)
    names = policy.codec.names(leaves=leaves)
    metrics = {f"entropy/{name}": Metric((entropy[..., index],)) for index, name in enumerate(names)}
    return loss - (entropy_weight * entropy).sum(-1), {"policy_entropy": entropy.detach()}, metrics


def _mean_entropy(head: ActionHead, present: tuple[bool, ...], index: int, *tensors: Tensor) -> Tensor:
    """Return the mean entropy of a part of the action; tensors: of mean, log_std, choices and noise those present."""
    remaining = iter(tensors)
    mean, log_std, choices, noise = (next(remaining) if there else None for there in present)
    return head.entropy(Heads(mean, log_std, choices), noise)[..., index].mean()

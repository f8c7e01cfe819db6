"""Targets of values, from target networks and over several steps."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rlrun import ops
from rlrun.core import distributed
from rlrun.core.errors import ConfigError, WiringError, require_one_of
from rlrun.core.typing import Tree
from rlrun.nn import (
    Critics,
    Follow,
    ImplicitCritics,
    Numbers,
    Rewards,
    SoftPolicy,
    Temperature,
    ValueHead,
    frozen_copy,
    value_head_of,
)
from rlrun.nn.value_heads import require_discounts
from rlrun.training.callback import Callback, Hook
from rlrun.training.update import of_target

TargetResult = tuple[dict[str, Any], dict[str, Any]]  # outputs, metrics
EntropyReward = bool | Literal["centered"]


class Target(Callback):
    """Provide targets to losses; a subclass writes `target`, whose arguments are looked up by name.

    It returns a dict of outputs (declared in `provides`) and a dict of metrics. It runs without gradients, reads its
    arguments, its modules and constants, and assigns nothing.
    """

    data_group: str | None = "default"
    provides: tuple[str, ...] = ("q_target",)

    def target(self, *names: Any) -> TargetResult:
        """Return outputs and metrics."""
        raise TypeError(f"{type(self).__name__} does not define a target")

    @torch.no_grad()
    def begin_batch(self, *values: Any, **optional: Any) -> Mapping[str, Any]:  # type: ignore[override]
        """Evaluate the target, store its metrics, and return its outputs."""
        outputs, metrics = of_target(self.target(*values, **optional))
        self.store.put(metrics)
        return outputs

    def hook(self, event: str) -> Hook | None:
        if event != "begin_batch":
            return super().hook(event)
        if type(self).begin_batch is not Target.begin_batch:
            raise WiringError(
                f"callbacks.{self.name}: {type(self).__name__} overrides begin_batch; a target is the method 'target', "
                "which returns outputs and metrics, two dicts"
            )
        return Callback.hook_of(self.target, "target")


class TargetCallback(Target):
    """Keep a target network of a network, and bootstrap from it; a subclass writes `target`.

    Args:
        network: is copied and followed.
        discount: γ a step, or one for each reward; `discount` in a batch (n-step returns) replaces it.
        tau: share by which the target network moves towards the network.
        every: updates of the data group between two moves; `tau` 1 copies the network.
        terminal_masking: use the value 0 after a termination; False = bootstrap there, too, as after a truncation.
        data_group: name of the batches that get targets.
    """

    inherited = ("target",)

    def __init__(
        self,
        network: nn.Module,
        *,
        discount: float | Sequence[float] = 0.99,
        tau: float = 0.005,
        every: int = 1,
        terminal_masking: bool = True,
        data_group: str = "default",
    ) -> None:
        self.network = network
        self.terminal_masking = terminal_masking
        self.followed: tuple[nn.Module, ...] = (network,)
        self.target_network = frozen_copy(network)
        self.discount = discount
        self.tau = tau
        self.every = every
        self.turns = 0  # updates of the data group so far
        self.target_subset: int | None = None
        self.value_head: ValueHead = Numbers()
        self.data_group = data_group
        self._follow = Follow(self.target_network, network)

    def bootstrap(self, reward: Tensor, terminated: Tensor, value: Tensor, discount: Tensor | None) -> TargetResult:
        """Return `q_target` [B] from the value [B] of the next state, or [B, N] from N returns.

        For critics of several rewards [B, R] it is [B, R], from values [R, B], or [B, R, N] from returns [R, B, N].

        Raises:
            ConfigError: there are several rewards and critics have one value, or vice versa.
        """
        several = reward.dim() > terminated.dim()
        if several is not isinstance(self.value_head, Rewards):
            rewards, learned = ("several", "one") if several else ("one", "each of several")
            raise ConfigError(
                f"algorithm.value_head: a step has {rewards} of rewards, and critics learn the value of {learned}; "
                "+with=reward_critics sets both"
            )
        terminated = self.masked(terminated)
        metrics = {"batch/reward": self.value_head.weighed(reward, axis=-1)}
        factor = ops.discounts(self.discount, like=value) if discount is None else discount
        if several:
            value = value.movedim(0, terminated.dim())
            if isinstance(factor, Tensor) and discount is None:  # [R]
                factor = factor.expand(reward.shape)
        if value.dim() > terminated.dim():
            reward, terminated = _reshaped(reward, value), _reshaped(terminated, value)
            factor = _reshaped(factor, value) if isinstance(factor, Tensor) else factor
        q_target = ops.bootstrap(reward, discount=factor, terminated=terminated, value=value)
        return {"q_target": q_target}, metrics

    def masked(self, terminated: Tensor) -> Tensor:
        """Return True where the next state's value is replaced by 0."""
        return terminated if self.terminal_masking else torch.zeros_like(terminated)

    def draw_from(self, critics: Any, target_subset: int | None) -> None:
        """Use a random subset of these critics for each target; None = all.

        Raises:
            ConfigError: there are fewer critics, or discounts do not match the rewards that critics learn.
        """
        if target_subset is not None and not 1 <= target_subset <= critics.members:
            raise ConfigError(
                f"target_subset: wanted a number from 1 to {critics.members}, of critics, got {target_subset}"
            )
        self.target_subset = target_subset
        _, self.value_head = value_head_of(critics)
        require_discounts(self.discount, self.value_head)

    def smallest(self, value: Tensor) -> Tensor:
        """Return the smallest value of the subset, [M, …] -> […]; for several rewards, each one's smallest."""
        return self.value_head.smallest(self.counting(value))

    def counting(self, values: Tensor) -> Tensor:
        """Return the values of a random subset of members (Chen et al. 2021, arXiv 2101.05982)."""
        if self.target_subset is None:
            return values
        return values[distributed.broadcast_(torch.randperm(len(values), device=values.device))[: self.target_subset]]

    def catch_up(self) -> None:
        """Make the target network equal to the network."""
        self._follow.move()

    def due(self) -> bool:
        return (self.turns + 1) % self.every == 0

    def passed(self) -> None:
        self.turns += 1

    def move(self) -> None:
        """Move the target network towards the network."""
        self._follow.move(self.tau)

    def end_batch(self) -> None:
        if self.due():
            self.move()
        self.passed()

    def hook(self, event: str) -> Hook | None:
        hook = super().hook(event)
        own = event == "end_batch" and type(self).end_batch is TargetCallback.end_batch
        return hook._replace(label="move") if own and hook is not None else hook

    @property
    def metrics(self) -> Mapping[str, Any]:
        shown = self.store.fresh or self.turns  # after a resume, too: another group may train the network
        distance = {f"target_distance/{self.name}": self._follow.distance()} if shown else {}
        return {**self.store.read(), **distance}

    def note(self, path_of: Callable[[object], str]) -> str:
        pace = "each update" if self.every == 1 else f"every {self.every} updates"
        return f"target network of {' and '.join(map(path_of, self.followed))}, moved by {self.tau} {pace}"

    def state_dict(self) -> dict[str, Any]:
        return {"target": self.target_network.state_dict(), **super().state_dict(), "turns": self.turns}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.target_network.load_state_dict(state["target"])
        super().load_state_dict(state)
        self.turns = state["turns"]


def _reshaped(part: Tensor, value: Tensor) -> Tensor:
    """Give a tensor [B, …] the dimensions of values [B, …, R, N]."""
    return part.reshape(part.shape + (1,) * (value.dim() - part.dim()))


class SmoothedPolicy(TargetCallback):
    """Keep a copy of a policy that follows it slowly, and acts instead of it (ALF's `use_smoothed_actor`).

    Raises:
        ConfigError: the network has no parameters.
    """

    provides = ()

    def __init__(self, network: nn.Module, **options: Any) -> None:
        if not any(True for _ in network.parameters()):
            raise ConfigError(f"a {type(network).__name__} has no parameters that a copy could follow")
        super().__init__(network, **options)

    def hook(self, event: str) -> Hook | None:
        return None if event == "begin_batch" else super().hook(event)


def require_entropy_reward(entropy_reward: EntropyReward) -> None:
    """Refuse an unknown entropy reward with a ConfigError."""
    if entropy_reward not in (True, False, "centered"):
        raise ConfigError(f"entropy_reward: wanted true, false or centered, got {entropy_reward!r}")


def less_cost(value: Tensor, cost: Tensor, entropy_reward: EntropyReward, valid: Tensor | None = None) -> Tensor:
    """Return values plus an entropy reward, which is minus a cost; `centered` adds the cost's mean over valid rows.

    Centered rewards count only entropy above the mean, so they do not favor long episodes.
    """
    value = value - cost
    return value + mean_cost(cost, valid) if entropy_reward == "centered" else value


def mean_cost(cost: Tensor, valid: Tensor | None) -> Tensor:
    """Return the mean of costs over valid rows of all ranks."""
    if valid is not None:
        cost = ops.over_valid(cost, valid.reshape(valid.shape + (1,) * (cost.dim() - valid.dim())))
    return distributed.mean_(cost.mean())


class QuantileTarget(TargetCallback, ABC):
    """Quantiles of the return [B, N] from target critics, at an action of a soft policy; a subclass writes `outcomes`.

    Args:
        critics: have the target network.
        policy: chooses the next action.
        temperature: α, the weight of the entropy.
        least: of critics: each quantile's smallest, all quantiles of the member with the smallest mean, or each
            quantile's mean over members minus their deviation.
        target_subset: number of critics that are drawn at random for each target, before `least`; None = all.
        entropy_reward: add the entropy of the action at the next state; `centered`: minus its mean over the batch.
        options: of `TargetCallback`.

    Raises:
        ConfigError: `least` or `entropy_reward` is unknown, or there are fewer members than `target_subset`.
    """

    def __init__(
        self,
        critics: Critics | ImplicitCritics,
        policy: SoftPolicy,
        temperature: Temperature,
        *,
        least: ops.Least = "quantile",
        target_subset: int | None = None,
        entropy_reward: EntropyReward = False,
        **options: Any,
    ) -> None:
        require_one_of("least", least, ops.LEAST)
        require_entropy_reward(entropy_reward)
        super().__init__(critics, **options)
        self.draw_from(critics, target_subset)
        self.raw_output, _ = value_head_of(self.target_network)
        self.policy = policy
        self.temperature = temperature
        self.least = least
        self.entropy_reward = entropy_reward

    def target(
        self,
        next_observation: Tree,
        reward: Tensor,
        terminated: Tensor,
        discount: Tensor | None = None,
        next_previous: Tree | None = None,
        valid: Tensor | None = None,
    ) -> TargetResult:
        c, log_prob = self.policy.continuous(next_observation, next_previous)  # [B, A], [B]
        value, further = self.outcomes(next_observation, c)
        if self.entropy_reward and log_prob is not None:
            cost = self.temperature.of("continuous") * log_prob.unsqueeze(-1)
            value = less_cost(value, cost, self.entropy_reward, valid)
        outputs, metrics = self.bootstrap(reward, terminated, value, discount)
        return {**outputs, **further}, metrics

    @abstractmethod
    def outcomes(self, observation: Tree, c: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the least quantiles of the target critics, [B, N], and further tensors for the loss."""


class LambdaReturn(Target):
    """Turn one-step targets of a window into TD(λ) targets (Sutton & Barto 2018, eq. 12.2, truncated at its end).

    There is no off-policy correction: later actions of a window are the stored ones. With λ = 1 a target sums all
    rewards of the window. Distributions of the return allow only λ = 1 and 0: others would mix their quantiles.

    Args:
        lambda_: λ, the weight of a longer return relative to the next shorter one.
        discount: γ a step; `discount` in a batch replaces it.
        n_step: number of rewards that the memory sums; must be 1.
        data_group: of the windows.

    Raises:
        ConfigError: λ is not in [0, 1], or rewards are sums of several steps.
    """

    def __init__(
        self, *, lambda_: float, discount: float | Sequence[float], n_step: int = 1, data_group: str = "default"
    ) -> None:
        if not 0.0 <= lambda_ <= 1.0:
            raise ConfigError(f"td_lambda.lambda: wanted a number from 0 to 1, got {lambda_}")
        if n_step != 1:
            raise ConfigError(f"td_lambda: it needs rewards of single steps: algorithm.n_step=1, not {n_step}")
        self.lambda_ = lambda_
        self.discount = discount
        self.data_group = data_group

    def target(
        self,
        q_target: Tensor,
        reward: Tensor,
        terminated: Tensor,
        truncated: Tensor,
        discount: Tensor | None = None,
        valid: Tensor | None = None,
        target_widths: Tensor | None = None,
    ) -> TargetResult:
        if target_widths is not None and target_widths.dim() > 1:
            raise ConfigError(
                "td_lambda: critics draw new fractions for each step, which TD(λ) cannot mix; set algorithm.fixed=true "
                "and td_lambda.lambda=1"
            )
        factor = ops.discounts(self.discount, like=reward) if discount is None else discount
        if isinstance(factor, Tensor) and discount is None:  # [R]
            factor = factor.expand(reward.shape)
        if q_target.dim() > reward.dim():  # [B, T, N], of a distribution
            if self.lambda_ not in (0.0, 1.0):
                raise ConfigError(
                    f"td_lambda.lambda: wanted 0 or 1, as these critics learn distributions, got {self.lambda_:g}"
                )
            reward = reward.unsqueeze(-1)
        if terminated.dim() < 2:
            raise ConfigError("td_lambda: batches hold single steps; td_lambda.length must be at least 2")
        episode_end = terminated | truncated
        if valid is not None:  # a repeated row follows the episode's last one
            episode_end = episode_end | ~torch.cat((valid[:, 1:], valid[:, -1:]), 1)
        if isinstance(factor, Tensor):  # [B, T], and rewards may have dimensions
            factor = factor.reshape(factor.shape + (1,) * (reward.dim() - factor.dim()))
        target = ops.lengthened(q_target, reward, episode_end=episode_end, discount=factor, lambda_=self.lambda_)
        return {"q_target": target}, {"batch/lambda_change": (target - q_target).abs()}

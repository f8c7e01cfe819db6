"""Targets from a network that follows another one slowly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from rlrun import learners, ops
from rlrun.callback import Callback
from rlrun.callbacks.loss import plain
from rlrun.errors import ConfigError
from rlrun.nn import Follow, Numbers, Rewards, Tells, frozen_copy, told_by


class Members(Protocol):
    """Critics, as far as it matters how many there are."""

    members: int


class TargetCallback(Callback):
    """Keep a slow copy of a network, and bootstrap from it; a subclass writes `begin_batch`.

    Args:
        network: what is followed.
        discount: γ a step; a batch that holds `discount` (n-step returns) goes before it.
        rate: share of the way by which the slow copy moves each time.
        every: updates of the data group between two moves; with `rate` 1 the copy jumps.
    """

    data_group: str | None = "default"
    provides: tuple[str, ...] = ("q_target",)

    def __init__(
        self,
        network: nn.Module,
        *,
        discount: float = 0.99,
        rate: float = 0.005,
        every: int = 1,
        data_group: str = "default",
    ) -> None:
        self.network = network
        self.target = frozen_copy(network)
        self.discount = discount
        self.rate = rate
        self.every = every
        self.turns = 0  # updates of the data group so far
        self.drawn: int | None = None
        self.tells: Tells = Numbers()
        self.data_group = data_group
        self._reward: Tensor | None = None
        self._before: Mapping[str, Any] = {}  # metrics of the newest update before a resume
        self._follow = Follow(self.target, network)

    def bootstrap(
        self, reward: Tensor, terminated: Tensor, value: Tensor, discount: Tensor | None
    ) -> dict[str, Tensor]:
        """Return `q_target` [B] from the value [B] of the state that was reached, or [B, N] from N returns.

        Where critics tell of several rewards [B, R] it is [B, R], from values [R, B].

        Raises:
            ConfigError: rewards are several and critics tell of one, or the other way round.
        """
        self._reward = reward
        apart = reward.dim() > terminated.dim()
        if apart is not isinstance(self.tells, Rewards):
            there, learned = ("several", "one") if apart else ("one", "each of several")
            raise ConfigError(
                f"algorithm.tells: a step has {there} of rewards, and critics learn the value of {learned}; "
                "+with=reward_critics sees to both"
            )
        factor = self.discount if discount is None else discount
        if apart:
            value = value.movedim(0, -1)
        if value.dim() > terminated.dim():
            reward, terminated = reward if apart else reward.unsqueeze(-1), terminated.unsqueeze(-1)
            factor = factor.unsqueeze(-1) if isinstance(factor, Tensor) else factor
        return {"q_target": ops.bootstrap(reward, discount=factor, terminated=terminated, value=value)}

    def draw_from(self, critics: Members, drawn: int | None) -> None:
        """Have so many members of these critics, drawn anew for each target, count; None = all.

        Raises:
            ConfigError: there are fewer.
        """
        if drawn is not None and not 1 <= drawn <= critics.members:
            raise ConfigError(f"drawn: wanted a number from 1 to {critics.members}, of critics, got {drawn}")
        self.drawn = drawn
        _, self.tells = told_by(critics)

    def smallest(self, value: Tensor) -> Tensor:
        """Return the smallest value of the members that count, [M, …] -> […]; of several rewards each one's least."""
        return self.tells.smallest(self.counting(value))

    def counting(self, values: Tensor) -> Tensor:
        """Return what the members tell that count this time, drawn at random (Chen et al. 2021, arXiv 2101.05982)."""
        if self.drawn is None:
            return values
        return values[learners.first_(torch.randperm(len(values), device=values.device))[: self.drawn]]

    def catch_up(self) -> None:
        """Make the slow copy equal to the network, as it is at the start."""
        self._follow.move()

    def due(self) -> bool:
        return (self.turns + 1) % self.every == 0

    def passed(self) -> None:
        self.turns += 1

    def end_batch(self) -> None:
        if self.due():
            self._follow.move(self.rate)
        self.passed()

    @property
    def metrics(self) -> Mapping[str, Any]:
        if self._reward is None:
            return self._before
        reward = self.tells.weighed(self._reward, axis=-1).mean()
        return {"batch/reward": reward, f"target_distance/{self.name}": self._follow.distance()}

    def note(self, path_of: Callable[[object], str]) -> str:
        pace = "each update" if self.every == 1 else f"every {self.every} updates"
        return f"slow copy of {path_of(self.network)}, moved by {self.rate} {pace}"

    def state_dict(self) -> dict[str, Any]:
        return {"target": self.target.state_dict(), "metrics": plain(self.metrics), "turns": self.turns}

    def load_state_dict(
        self, state: dict[str, Any], *, weights: bool = True, optimiser: bool = True, numbers: bool = True
    ) -> None:
        if weights:
            self.target.load_state_dict(state["target"])
        super().load_state_dict(state, numbers=numbers)

    def load_numbers(self, state: dict[str, Any]) -> None:
        self._before, self.turns = state["metrics"], state.get("turns", 0)  # earlier versions saved none

"""What a collector needs to be left at any step and to be gone on with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

import numpy as np

from rlrun.core.typing import Array, Tree


class Signals(Protocol):
    """What tells that the run shall be left."""

    requested: str | None

    def check(self) -> None:
        """Raise where it shall; where there are several learners, only `meet` does."""

    def meet(self) -> None:
        """Raise in all learners where it shall; all of them call it."""


class Quiet:
    """No signal ever comes."""

    requested: str | None = None

    def check(self) -> None:
        pass

    def meet(self) -> None:
        pass


class Budgeted(ABC):
    """A collector that a loader can ask for no more steps than the run's budget allows."""

    steps: int
    _budget: Any = None  # the run's, once training has begun

    @abstractmethod
    def collect(self, steps: int, random: bool = False) -> int:
        """Make so many steps, or the least number of rounds that holds them; return how many were made."""

    def fill(self, steps: int, random: bool = False) -> int:
        """Do as `collect` does, in no more rounds than the budget leaves; return how many steps were made.

        Raises:
            Stop: the budget is used up, or a signal came.
        """
        return self.collect(steps if self._budget is None else self._budget.left(self.steps, steps), random)


def branch_seed(seed: int, steps: int) -> int:
    """Return a seed for episodes that begin after so many steps; by `seed` alone the run's first ones came again."""
    return int(np.random.SeedSequence([seed, steps]).generate_state(1)[0] >> 1)


def rows_equal(first: Tree, second: Tree) -> Array:
    """Tell row by row whether two trees of arrays [N, …] are equal, bit by bit: [N]."""
    if isinstance(first, dict):
        parts = [rows_equal(part, second[name]) for name, part in first.items()]
        return np.all(parts, axis=0)  # type: ignore[no-any-return]
    pairs = zip(np.ascontiguousarray(first), np.ascontiguousarray(second), strict=True)
    return np.array([mine.tobytes() == theirs.tobytes() for mine, theirs in pairs])


def told(lost: dict[int, str], count: int) -> str:
    """Say of envs why they were lost, those with one reason together."""
    envs: dict[str, list[int]] = {}
    for env_index, why in sorted(lost.items()):
        envs.setdefault(why, []).append(env_index)
    if list(map(len, envs.values())) == [count]:
        return f"every env: {next(iter(envs))}"
    return "; ".join(
        f"{'env' if len(group) == 1 else 'envs'} {', '.join(map(str, group))}: {why}" for why, group in envs.items()
    )

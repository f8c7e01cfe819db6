"""Iterables of batches: a loader decides when to collect and when to learn."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any, Protocol

from rlrun.errors import ConfigError
from rlrun.memory.table import Table
from rlrun.typing import Groups

CHUNK = 1000  # steps of a warm-up call: short enough to react to a signal in between


class Steps(Protocol):
    """What a loader needs of a collector."""

    @property
    def steps(self) -> int:
        """Environment steps made so far, over all lanes."""

    def collect(self, steps: int, random: bool = False) -> int:
        """Make at least so many environment steps; return how many were made."""


class ReplayLoader:
    """Collect a little, learn a little: `updates_per_step` updates for each environment step.

    First come `warm_up` steps with random actions, and as many more as it takes until the table
    holds a window. `steps_per_update`, where given, replaces `updates_per_step`. Steps are made
    in whole rounds of the lanes, so several updates may follow one round; none is lost.
    """

    def __init__(
        self,
        *,
        table: Table,
        collector: Steps,
        batch: int,
        length: int = 1,
        updates_per_step: float = 1.0,
        steps_per_update: float | None = None,
        warm_up: int = 1000,
        data_group: str = "default",
    ) -> None:
        _at_least("batch", batch, 1)
        _at_least("length", length, 1)
        _at_least("warm_up", warm_up, 0)
        self.table = table
        self.collector = collector
        self.batch = batch
        self.length = length
        self.warm_up = warm_up
        self.data_group = data_group
        if steps_per_update is not None:
            self.rate = 1 / _positive("steps_per_update", steps_per_update)
        else:
            self.rate = _positive("updates_per_step", updates_per_step)
        self.updates = 0
        self.start: int | None = None  # environment steps at the end of the warm-up

    def names(self) -> dict[str, tuple[str, ...]]:
        """Return the names that batches will have, by data group."""
        return {self.data_group: self.table.names()}

    def __iter__(self) -> Iterator[Groups]:
        if self.start is None:
            self.start = self._warm_up()
        # whole numbers: a float would drift over a million updates
        updates, steps = self.rate.numerator, self.rate.denominator
        while True:
            due = -((self.updates + 1) * -steps // updates)  # steps after warm-up at which the next update is due
            missing = self.start + due - self.collector.steps
            while missing > 0:
                missing -= self.collector.collect(missing)
            self.updates += 1
            yield {self.data_group: self.table.sample(self.batch, self.length)}

    def _warm_up(self) -> int:
        missing = self.warm_up - self.collector.steps
        while missing > 0:
            missing -= self.collector.collect(min(missing, CHUNK), random=True)
        while not self.table.windows(self.length) and not self.table.full():
            self.collector.collect(1, random=True)
        return self.collector.steps

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the schedule."""
        return {"updates": self.updates, "start": self.start}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a position; the collector's steps are the collector's to restore."""
        self.updates, self.start = state["updates"], state["start"]


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigError(f"loader.{name} must be at least {least}, not {value}")


def _positive(name: str, value: float) -> Fraction:
    try:
        number = Fraction(str(value))  # the decimal that was written: 0.1 is a tenth
    except ValueError:
        number = Fraction(0)
    if number <= 0:
        raise ConfigError(f"loader.{name} must be a number above 0, not {value}")
    return number

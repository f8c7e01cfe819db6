"""A sampler that draws a part of each batch from the newest rows."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.core.errors import ConfigError, require_at_least
from rlrun.core.generators import Seeded
from rlrun.core.typing import Array
from rlrun.memory.table.index import EpisodeIndex
from rlrun.memory.table.samplers import Rows, Sampler


class Recent(Seeded, Sampler):
    """Draws a part of each batch evenly from the newest rows, and the rest by another sampler.

    If the newest rows are at least that part of the table, the other sampler draws all.

    Args:
        sampler: draws the rest, and gets the feedback of the whole batch. If it has weights, those of new rows are 1.
        share: this part of a batch, rounded up, is new.
        newest: number of rows that count as new, all envs together.
        seed: of the new part.
    """

    one_rank = "its newest rows are counted in one memory"

    def __init__(self, sampler: Sampler, *, share: float, newest: int, seed: int = 0) -> None:
        if not 0 < share <= 1:
            raise ConfigError(f"share must be above 0 and at most 1, not {share}")
        require_at_least("newest", newest, 1)
        if sampler.by_burst:
            raise ConfigError("memory.sampler: Recent draws samples singly; it wants feedback=update")
        self.sampler = sampler
        self.share = share
        self.newest = newest
        self.provides = sampler.provides
        super().__init__([seed, 1])  # other numbers than the other sampler draws
        self.clock = 0  # rows that were ever added
        self.log = np.zeros(newest, np.int64)  # their slots: row number c at c % newest

    def bind(self, index: EpisodeIndex) -> None:
        super().bind(index)
        self.sampler.bind(index)
        # by slot: number of its newest row; a slot may be in the log twice if whole episodes leave
        self.number = np.full(index.size, -1, np.int64)

    def track(self, episodes: Array) -> None:
        self.sampler.track(episodes)

    def forget(self, episodes: Array) -> None:
        self.sampler.forget(episodes)

    def on_add(self, slots: Any) -> None:
        self.sampler.on_add(slots)
        if isinstance(slots, slice) and slots.stop - slots.start == 1:  # a single environment: no arrays of one
            self.log[self.clock % self.newest] = slots.start
            self.number[slots.start] = self.clock
            self.clock += 1
            return
        slots = np.arange(slots.start, slots.stop) if isinstance(slots, slice) else slots
        numbers = self.clock + np.arange(len(slots))
        self.number[slots] = numbers
        self.log[numbers[-self.newest :] % self.newest] = slots[-self.newest :]
        self.clock += len(slots)

    def moved(self, old: Array, new: Array) -> None:
        self.sampler.moved(old, new)
        place = np.full(len(self.number), -1)  # -1: the row is gone
        place[old] = new
        number = np.full(self.index.size, -1, np.int64)
        number[new] = self.number[old]
        self.log, self.number = np.where(self.log < 0, -1, place[self.log]), number

    def pick(self, count: int, length: int) -> Rows:
        wanted = math.ceil(self.share * count - 1e-9)  # a tenth of 30 is 3 in spite of rounding
        enough = self.newest >= self.share * min(self.clock, self.index.size)
        start = self._starts(0 if enough else wanted, length)
        if len(start) == count > 0:
            return self.rows(start, length, np.ones(count, np.float32) if "weight" in self.provides else None)
        rest = self.sampler.pick(count - len(start), length)
        if not len(start):
            return rest
        weight = None if rest.weight is None else np.concatenate([np.ones(len(start), np.float32), rest.weight])
        return self.rows(np.concatenate([start, rest.start]), length, weight)

    def _starts(self, wanted: int, length: int) -> Array:
        """Draw windows that begin in the newest rows; empty if there are none."""
        if not wanted:
            return self.log[:0]
        filled = min(self.clock, self.newest)
        start = self._begin(self.generator.integers(filled, size=wanted * 5 // 4 + 8), length)
        if len(start) < wanted:
            every = self._begin(np.arange(filled), length)
            if len(every):
                start = np.concatenate([start, self.generator.choice(every, wanted - len(start))])
        return start[:wanted]

    def _begin(self, age: Array, length: int) -> Array:
        """Return the rows (the newest has age 0) that begin a window."""
        number = self.clock - 1 - age
        slots: Array = self.log[number % self.newest]
        valid = self.index.unbroken(slots, self.index.after(slots, length), length)
        begun: Array = slots[valid & (self.number[slots] == number)]
        return begun

    @property
    def learns(self) -> bool:
        return self.sampler.learns

    def feedback(self, rows: Rows, priority: Tensor) -> None:
        self.sampler.feedback(rows, priority)

    def state_dict(self) -> dict[str, Any]:
        log = torch.from_numpy(self.log.copy())
        return super().state_dict() | {"clock": self.clock, "log": log, "sampler": self.sampler.state_dict()}

    def takes(self, state: Mapping[str, Any]) -> bool:
        return super().takes(state) and self.sampler.takes(state["sampler"])

    def forked(self, state: Mapping[str, Any]) -> dict[str, Any]:
        return super().forked(state) | {"sampler": self.sampler.forked(state["sampler"])}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.clock, log = state["clock"], state["log"].numpy()
        number = np.arange(max(self.clock - min(len(log), self.newest), 0), self.clock)
        self.log[number % self.newest] = log[number % len(log)]  # of another length where `newest` was another
        number = number[self.log[number % self.newest] >= 0]
        self.number[self.log[number % self.newest]] = number  # the newest of a slot comes last
        self.sampler.load_state_dict(state["sampler"])

"""A loader of rounds over all rows of a replay memory, or over its new rows."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from rlrun.core import distributed
from rlrun.core.errors import ConfigError, require_at_least, require_counts
from rlrun.core.generators import Seeded
from rlrun.core.typing import Array, Groups
from rlrun.memory.loaders.replay import ReplayLoader
from rlrun.memory.table.samplers import Rows, Sampler
from rlrun.memory.table.table import Table


class Shuffled(Seeded, Sampler):
    """Draws every window once, in random order, then all windows again.

    Windows of several steps begin at every row. Windows that are overwritten before their turn are skipped.

    seed: of the order.
    """

    renewed = ("generator", "order", "seen")

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__(seed)
        self.order: Array = np.empty((0, 2), np.int64)  # of the remaining windows: the first slot, and its stamp
        self.seen: Array | None = None  # [N], rows that each env had written when the last round began

    def begin_round(self, length: int, *, passes: int, fresh: bool) -> int:
        """Begin a round: the next picks are passes over the present windows; return the number of windows.

        fresh: leave out the windows of earlier rounds.
        """
        index, starts = self.index, self._starts(length)
        if fresh and self.seen is not None and (self.seen <= index.written).all():
            last = starts if length == 1 else index.after(starts, length - 1)
            # the newest row of an env had no successor then, so it was in no window
            starts = starts[index.age(last) <= (index.written - self.seen)[index.env_of(last)]]
        self.seen = index.written.copy()
        self._shuffle([starts] * passes)
        return len(starts)

    def pick(self, count: int, length: int) -> Rows:
        start = np.empty(0, np.int64)
        while missing := count - len(start):
            if not len(self.order):
                self._shuffle([self._starts(length)])
                if not len(self.order):
                    raise self.none(count, length)
            slots, stamps = self.order[:missing].T
            start = np.concatenate([start, self._windows(slots[self.index.stamp[slots] == stamps], length)])
            self.order = self.order[missing:]
        return self.rows(start, length)

    def _shuffle(self, passes: Sequence[Array]) -> None:
        starts = np.concatenate([self.generator.permutation(starts) for starts in passes])
        self.order = np.stack([starts, self.index.stamp[starts].astype(np.int64)], axis=1)

    def _starts(self, length: int) -> Array:
        return self._windows(np.flatnonzero(self.index.complete[:-1]), length)

    def _windows(self, slots: Array, length: int) -> Array:
        """Return the slots at which a window begins."""
        slots = slots[self.index.complete[slots]]
        return slots[self.index.unbroken(slots, self.index.after(slots, length), length)]

    def moved(self, old: Array, new: Array) -> None:
        self.order, self.seen = self.order[:0], None  # the next round, or pass, begins at once

    def state_dict(self) -> dict[str, Any]:
        seen = None if self.seen is None else torch.from_numpy(self.seen)
        return super().state_dict() | {"order": torch.from_numpy(self.order), "seen": seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        order = state["order"].numpy()
        self.order = order[(order[:, 0] >= 0) & (order[:, 0] < self.index.size)]
        self.seen = None if state["seen"] is None else state["seen"].numpy()


class WholeReplayLoader(ReplayLoader):
    """Alternates between `collect_steps` environment steps and a round of updates from all rows of the table.

    A round is `epochs` passes over the rows in random order, in batches of about equal size, at least `batch` if there
    are enough rows. So the number of updates follows from the rows; `updates_per_step` has no effect.

    Args:
        epochs: passes of a round.
        fresh: a round learns from the rows since the last round, as if the table were cleared. False: from all.
        options: of `ReplayLoader`.

    Raises:
        ConfigError: the sampler is not `Shuffled`, updates do not wait for steps, or `fresh` comes without a collector.
    """

    def __init__(self, *, epochs: int = 1, fresh: bool = True, **options: Any) -> None:
        super().__init__(**options)
        require_at_least("epochs", epochs, 1)
        self.sampler = getattr(self.table, "sampler", None)
        if not isinstance(self.sampler, Shuffled):
            kind = type(self.table if self.sampler is None else self.sampler).__name__
            raise ConfigError(f"memory.sampler: whole rounds want rlrun.memory.Shuffled, not a {kind}")
        if self.ahead is not None:
            raise ConfigError("loader.steps_per_update=0: updates wait for no step, and rounds begin after some steps")
        if fresh and self.collector is None:
            raise ConfigError("fresh: nothing is collected, so no row is new; fresh=false")
        if fresh and self.sampler.index.min_length > 1:
            raise ConfigError("memory.min_length: rows that wait for it are not new in a round; 1, or fresh=false")
        self.epochs, self.fresh = epochs, fresh
        self.rounds = 0  # rounds begun so far
        self.windows, self.given = 0, 0  # windows of a pass, and batches of the round so far

    def __iter__(self) -> Iterator[Groups]:
        while self._before_steps():
            self.updates += 1
            yield self._batch(self.batch)
        self._until_ready()
        while True:
            while not self._left():
                self._begin_round()
            size, larger = divmod(self.windows, self._updates())
            size += self.given % self._updates() < larger
            self.given += 1
            yield self._batch(size)

    def _updates(self) -> int:
        """Return the number of updates of a pass."""
        return max(self.windows // self.batch, min(self.windows, 1))

    def _left(self) -> int:
        return self.epochs * self._updates() - self.given

    def _begin_round(self) -> None:
        """Collect, then begin a round of the sampler."""
        if self.collector is not None:
            until = (self.start or 0) + self.rounds * self.collect_steps
            while (missing := until - self.collector.steps) > 0:
                self.collector.collect(missing)
        assert isinstance(self.sampler, Shuffled)
        assert isinstance(self.table, Table)
        length = 1 if self.table.pads(self.length) else self.length
        windows = self.sampler.begin_round(length, passes=self.epochs, fresh=self.fresh)
        self.windows, self.given, self.rounds = min(distributed.all_gather(windows)), 0, self.rounds + 1
        if not self.windows and self.collector is None:
            raise self.sampler.none(self.batch, self.length)

    def ready(self) -> bool:
        return self._before_steps() if self.start is None else self._left() > 0

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"rounds": self.rounds, "windows": self.windows, "given": self.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        require_counts({name: state[name] for name in ("rounds", "windows", "given")})
        self.rounds, self.windows, self.given = state["rounds"], state["windows"], state["given"]

"""Which episodes leave a full table."""

from abc import abstractmethod
from typing import Any

import numpy as np

from rlrun.core.generators import Seeded
from rlrun.core.typing import Array
from rlrun.memory.table.coverage_samplers import CountedSampling
from rlrun.memory.table.samplers import Rows, Strategy


class Ejector(Strategy):
    """Chooses which closed episodes a full table drops to make room for a row.

    A table with an ejector keeps the rows of all envs in one pool (`PoolIndex`), and drops whole episodes. Open
    episodes lose their oldest rows only when no closed episode is left.
    """

    by_row = False  # True: no picking; each env's ring overwrites its oldest rows

    def on_sample(self, rows: Rows) -> None:
        """Note the rows of a sample."""

    @abstractmethod
    def pick(self, count: int) -> Array:
        """Return closed episodes whose slots together are at least `count`, or all closed ones if they are fewer."""


class Fifo(Ejector):
    """First in, first out.

    Args:
        whole: whole episodes leave, the one that ended first before all others. False: each env drops its oldest
            rows, which keeps more rows and is faster.
    """

    def __init__(self, *, whole: bool = False) -> None:
        self.by_row = not whole
        self._closed: list[int] = []  # episodes, oldest first

    def track(self, episodes: Array) -> None:
        if not self.by_row:
            self._closed += episodes.tolist()

    def forget(self, episodes: Array) -> None:
        if not self.by_row:
            gone = set(episodes.tolist())
            if set(self._closed[: len(gone)]) == gone:  # the usual case
                del self._closed[: len(gone)]
            else:
                self._closed = [episode for episode in self._closed if episode not in gone]

    def pick(self, count: int) -> Array:
        closed = np.array(self._closed[:count], np.int64)  # each has a slot at least
        rows = np.cumsum(self.index.held(closed))
        return closed[: int(np.searchsorted(rows, count)) + 1]

    def state_dict(self) -> dict[str, Any]:
        return {"ended": list(self._closed)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._closed = list(state["ended"])


class UniformEjector(Seeded, Ejector):
    """Closed episodes leave at random, with a chance in proportion to their slots, so all rows are equally likely."""

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__([seed, 2])  # other numbers than a sampler of this seed draws

    def pick(self, count: int) -> Array:
        """Draw episodes without replacement until their slots are `count` or all are drawn."""
        index = self.index
        closed = np.flatnonzero(index.closed())
        slots = index.held(closed)
        # the smallest waiting times are those of draws without replacement
        waits = self.generator.exponential(size=len(closed)) / self.weight(closed, slots)
        most = min(count, len(closed))  # as each has at least one slot
        first = np.argpartition(waits, most - 1)[:most] if most else closed[:0]
        order = first[np.argsort(waits[first])]
        covered = slots[order].cumsum()
        return closed[order[: np.searchsorted(covered, count) + 1]]

    def weight(self, episodes: Array, slots: Array) -> Array:
        """Return the relative chances of episodes [n]; slots: the numbers of slots that they take, [n]."""
        return slots


class CoverageEjector(CountedSampling, UniformEjector):
    """Often sampled episodes leave sooner: they are (1 + surplus) ** alpha times as likely.

    With alpha 0 it equals `UniformEjector`.
    """

    def on_sample(self, rows: Rows) -> None:
        self.count(self.index.episode(rows.start))

    def weight(self, episodes: Array, slots: Array) -> Array:
        weight: Array = slots * (1.0 + self.surplus(episodes)) ** self.alpha
        return weight

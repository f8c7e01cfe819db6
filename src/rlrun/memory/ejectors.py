"""Which episodes leave a full table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from rlrun.core.errors import ConfigError
from rlrun.core.generators import Seeded
from rlrun.core.typing import Array
from rlrun.memory.by_episode import Visits
from rlrun.memory.index import EpisodeIndex
from rlrun.memory.samplers import Rows


class Ejector(ABC):
    """Decides which closed episodes are dropped when there is no slot for a row.

    A table with an ejector keeps its rows in one pool for all envs (`PoolIndex`), and whole
    episodes leave. Only where all closed episodes are gone do open ones lose their oldest rows.
    """

    by_row = False  # True: no picking; each env's ring overwrites its oldest rows
    index: EpisodeIndex

    def bind(self, index: EpisodeIndex) -> None:
        """Meet the index; called once, by the table."""
        self.index = index

    def track(self, episodes: Array) -> None:
        """Learn that these episodes [n] were closed."""

    def forget(self, episodes: Array) -> None:
        """Learn that these episodes [n] are gone; their numbers will be used again."""

    def on_sample(self, rows: Rows) -> None:
        """Learn what was sampled."""

    @abstractmethod
    def pick(self, count: int) -> Array:
        """Return closed episodes whose slots together are at least `count`, or all closed ones if they are fewer."""

    def state_dict(self) -> dict[str, Any]:
        """Return whatever influences the next `pick`."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""


class Fifo(Ejector):
    """First in, first out.

    Args:
        whole: whole episodes leave, the one that ended first before all others; otherwise each env's oldest rows
            do, which keeps more of them and is faster.
    """

    def __init__(self, *, whole: bool = False) -> None:
        self.by_row = not whole
        self._episode_end: list[int] = []  # closed episodes, oldest first

    def track(self, episodes: Array) -> None:
        if not self.by_row:
            self._episode_end += episodes.tolist()

    def forget(self, episodes: Array) -> None:
        if not self.by_row:
            gone = set(episodes.tolist())
            if set(self._episode_end[: len(gone)]) == gone:  # the usual case
                del self._episode_end[: len(gone)]
            else:
                self._episode_end = [episode for episode in self._episode_end if episode not in gone]

    def pick(self, count: int) -> Array:
        episode_end = np.array(self._episode_end[:count], np.int64)  # each has a slot at least
        rows = np.cumsum(self.index.held(episode_end))
        return episode_end[: int(np.searchsorted(rows, count)) + 1]

    def state_dict(self) -> dict[str, Any]:
        return {"ended": list(self._episode_end)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._episode_end = list(state["ended"])


class UniformEjector(Seeded, Ejector):
    """Closed episodes leave by lot, each as likely as it is long, so that any row is as likely to leave."""

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__([seed, 2])  # not what a sampler draws

    def pick(self, count: int) -> Array:
        """Draw episodes, none twice, until their slots are `count` or there are no more."""
        index = self.index
        closed = np.flatnonzero(index.closed())
        slots = index.held(closed)
        # whoever waits least in exponential races is drawn first; the same as one draw after another
        waits = self.generator.exponential(size=len(closed)) / self.weight(closed, slots)
        most = min(count, len(closed))  # for each has a slot at least
        first = np.argpartition(waits, most - 1)[:most] if most else closed[:0]
        order = first[np.argsort(waits[first])]
        covered = slots[order].cumsum()
        return closed[order[: np.searchsorted(covered, count) + 1]]

    def weight(self, episodes: Array, slots: Array) -> Array:
        """Return how likely each of the episodes [n], which take so many slots [n], is drawn."""
        return slots


class CoverageEjector(UniformEjector):
    """Episodes that were sampled more leave sooner: they are (1 + surplus) ** alpha times as likely.

    The surplus is how many more windows of the episode were sampled than of the least sampled one. With alpha 0
    it is the uniform one.
    """

    def __init__(self, *, alpha: float = 0.5, seed: int = 0) -> None:
        if alpha < 0:
            raise ConfigError(f"memory.ejector: CoverageEjector.alpha must be at least 0, not {alpha}")
        super().__init__(seed=seed)
        self.alpha = alpha
        self.visits = Visits()

    def forget(self, episodes: Array) -> None:
        self.visits.forget(episodes)

    def on_sample(self, rows: Rows) -> None:
        self.visits.add(self.index.episode(rows.start), len(self.index.lane))

    def weight(self, episodes: Array, slots: Array) -> Array:
        surplus = self.visits.above_least(episodes, len(self.index.lane))
        weight: Array = slots * (1.0 + surplus) ** self.alpha
        return weight

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"visits": self.visits.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.visits.load_state_dict(state["visits"])

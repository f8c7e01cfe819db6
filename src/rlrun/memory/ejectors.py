"""Which episodes leave a full table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from rlrun.memory.index import EpisodeIndex
from rlrun.memory.samplers import Rows
from rlrun.typing import Array


class Ejector(ABC):
    """Decides which closed episodes are dropped when there is no slot for a row.

    A table with an ejector keeps its rows in one pool for all lanes (`PoolIndex`), and whole
    episodes leave. Only where all closed episodes are gone do open ones lose their oldest rows.
    """

    by_row = False  # True: no picking; each lane's ring overwrites its oldest rows
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
        whole: whole episodes leave, the one that ended first before all others; otherwise each lane's oldest rows
            do, which keeps more of them and is faster.
    """

    def __init__(self, *, whole: bool = False) -> None:
        self.by_row = not whole
        self._ended: list[int] = []  # closed episodes, oldest first

    def track(self, episodes: Array) -> None:
        if not self.by_row:
            self._ended += episodes.tolist()

    def forget(self, episodes: Array) -> None:
        if not self.by_row:
            gone = set(episodes.tolist())
            if set(self._ended[: len(gone)]) == gone:  # the usual case
                del self._ended[: len(gone)]
            else:
                self._ended = [episode for episode in self._ended if episode not in gone]

    def pick(self, count: int) -> Array:
        ended = np.array(self._ended[:count], np.int64)  # each has a slot at least
        rows = np.cumsum(self.index.held(ended))
        return ended[: int(np.searchsorted(rows, count)) + 1]

    def state_dict(self) -> dict[str, Any]:
        return {"ended": list(self._ended)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._ended = list(state["ended"])

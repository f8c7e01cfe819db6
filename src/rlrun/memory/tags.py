"""Tags: one value an episode."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from rlrun.errors import RlrunError
from rlrun.memory.columns import Column
from rlrun.memory.index import EpisodeIndex
from rlrun.memory.samplers import Rows
from rlrun.typing import Array, Batch


class Tags:
    """Values by episode number; an episode that still runs has zeros."""

    def __init__(self, columns: Iterable[Column], index: EpisodeIndex) -> None:
        self.columns = {column.name: column for column in columns}
        self.index = index
        size = len(index.lane)
        self.values = {name: np.zeros((size, *column.shape), column.dtype) for name, column in self.columns.items()}

    def __iter__(self) -> Any:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def check(self, tags: Mapping[str, Any] | None) -> None:
        """Refuse an end without its tags.

        Raises:
            RlrunError: a tag is missing.
        """
        for name in self.columns:
            if tags is None or name not in tags:
                raise RlrunError(f"memory: an episode ended without its tag '{name}'; given {', '.join(tags or ())}")

    def put(self, episodes: Array, tags: Mapping[str, Any]) -> None:
        """Set the tags of closed episodes [n]; -1 stands for one that is gone already."""
        self._grow()
        here = np.flatnonzero(episodes >= 0)
        for name, values in self.values.items():
            values[episodes[here]] = np.atleast_1d(np.asarray(tags[name]))[here]

    def clear(self, episodes: Array) -> None:
        """Forget the tags of episodes [n]."""
        self._grow()
        for values in self.values.values():
            values[episodes] = 0

    def read(self, rows: Rows) -> Batch:
        """Return the tags of each window's episode [B, …]."""
        self._grow()
        episode = self.index.episode(rows.start)
        return {name: torch.from_numpy(values[episode]) for name, values in self.values.items()}

    def _grow(self) -> None:
        for name, values in self.values.items():
            more = len(self.index.lane) - len(values)
            if more > 0:
                self.values[name] = np.concatenate([values, np.zeros((more, *values.shape[1:]), values.dtype)])

    def state_dict(self) -> dict[str, Any]:
        """Return all values."""
        return {name: torch.from_numpy(values.copy()) for name, values in self.values.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take values back."""
        for name in self.values:
            self.values[name] = state[name].numpy().copy()

"""Which windows a table serves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from rlrun.errors import RlrunError
from rlrun.memory.columns import Storage
from rlrun.memory.index import EpisodeIndex
from rlrun.typing import Array, Tree


@dataclass
class Rows:
    """The rows of one sample, and a way to look around them."""

    index: Array  # [B] or [B, T] flat slots
    successor: Array  # the slots of the next observations, like index
    where: EpisodeIndex
    weight: Array | None = None  # [B] importance, from samplers that do not draw evenly
    storage: Storage | None = None  # set by the table, so that adaptors can fetch more

    @property
    def episode(self) -> Array:
        """The number of each row's episode; of the shape of `index`."""
        return self.where.episode(self.index)

    def gather(self, column: str, index: Array) -> Tree:
        """Fetch a column (or a leaf of it, by dotted name) at flat slots of any shape, as tensors."""
        assert self.storage is not None
        return self.storage.gather(column, index)

    def onward(self, k: int) -> tuple[Array, Array]:
        """Look up to `k` steps ahead.

        Returns the slots of each row and of those after it, [B, k + 1], and how many steps lie within
        the episode as far as it is stored (1 … k), [B]; for windows with T behind B.
        """
        steps = np.arange(k + 1)
        slots = self.where.after(self.index[..., None], steps)
        return slots, self.where.within(slots, steps).sum(-1)


class Sampler(ABC):
    """Draws windows; one class per way of drawing.

    All calls come in batches, never once a transition. A sampler that keeps a number for each
    row catches up in `pick`: `index.written` tells what each lane has written since.
    """

    provides: tuple[str, ...] = ()  # "weight" where `pick` sets it
    index: EpisodeIndex

    def bind(self, index: EpisodeIndex) -> None:
        """Meet the index; called once, by the table."""
        self.index = index

    def track(self, episodes: Array) -> None:
        """Learn that these episodes [n] were closed."""

    def forget(self, episodes: Array) -> None:
        """Learn that these episodes [n] are gone; their numbers will be used again."""

    @abstractmethod
    def pick(self, count: int, length: int) -> Rows:
        """Draw windows of `length` consecutive rows of one episode, each with its successor stored.

        Raises:
            RlrunError: there is no such window.
        """

    def rows(self, start: Array, length: int, weight: Array | None = None) -> Rows:
        """Return the rows of windows of `length` that begin at the slots `start` [B]."""
        successor = self.index.after(start, 1)
        if length > 1:
            start, successor = self.index.run(start, length), self.index.run(successor, length)
        return Rows(start, successor, self.index, weight)

    def feedback(self, rows: Rows, priority: Tensor) -> None:
        """Learn how surprising the rows of an earlier `pick` were, priority: [B] or [B, T]."""

    def state_dict(self) -> dict[str, Any]:
        """Return whatever influences the next `pick`."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""


class Uniform(Sampler):
    """Every window is equally likely, however long its episode is.

    Slots are drawn from the written part of the rings and those that begin no window are thrown
    away. Where most would be (long windows, short episodes), the windows are counted instead.
    """

    def __init__(self, *, seed: int = 0) -> None:
        self.generator = np.random.Generator(np.random.PCG64(seed))

    def pick(self, count: int, length: int) -> Rows:
        if length >= self.index.slots:
            raise self._none(count, length)
        drawn = count + count // 4 + 8
        start, successor = self._reject(drawn, length)
        if len(start) < count and 8 * len(start) > drawn:  # worth another try
            more, further = self._reject(drawn * (count - len(start)) // len(start) * 5 // 4 + 8, length)
            start, successor = np.concatenate([start, more]), np.concatenate([successor, further])
        if len(start) < count:
            start = np.concatenate([start, self._enumerate(count - len(start), count, length)])
        if length == 1 and len(successor) >= count:  # found on the way; saves finding it again
            return Rows(start[:count], successor[:count], self.index)
        return self.rows(start[:count], length)

    def _reject(self, count: int, length: int) -> tuple[Array, Array]:
        index = self.index
        filled = min(int(index.written.max()), index.slots)
        if filled == 0:
            return index.free[:0], index.free[:0]
        drawn = self.generator.integers(0, index.num_envs * filled, count)
        if filled < index.slots and index.num_envs > 1:
            drawn += drawn // filled * (index.slots - filled)
        ends = index.after(drawn, length)
        kept = np.flatnonzero(index.unbroken(drawn, ends, length))
        return drawn[kept], ends[kept]

    def _enumerate(self, missing: int, count: int, length: int) -> Array:
        last = self.index.windows(length).cumsum()  # number of the first window after each episode
        if last[-1] == 0:
            raise self._none(count, length)
        number = self.generator.integers(0, last[-1], missing)
        episode = np.searchsorted(last, number, side="right")
        return self.index.window(episode, number - (last - self.index.windows(length))[episode])

    def _none(self, count: int, length: int) -> RlrunError:
        rows = self.index.windows(1)
        return RlrunError(
            f"memory: a sample of {count} windows needs one of {length} transitions; the table holds "
            f"{int(rows.sum())} transitions in {int((rows > 0).sum())} episodes, the longest of {int(rows.max())}"
        )

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.bit_generator.state = state["generator"]

"""Samplers: they choose the windows that a table serves."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from torch import Tensor

from rlrun.core.errors import RlrunError, require_one_of
from rlrun.core.generators import Seeded
from rlrun.core.typing import Array, Tree
from rlrun.memory.table.index import EMPTY, EpisodeIndex

STOCK = 4096  # random numbers drawn at once
WEIGHTINGS = ("windows", "episodes")
Reader = Callable[[str, Tree, Array], Tree]


@dataclass
class Rows:
    """The rows of one sample; finds the rows before and after them."""

    index: Array  # [B] or [B, T] flat slots
    following: Array | None  # the slots of the next observations, like index; None: not looked up yet
    where: EpisodeIndex
    weight: Array | None = None  # [B] importance, from samplers that do not draw evenly
    valid: Array | None = None  # [B, T], for padded windows: flags of real rows, which are learned from
    windows: Array | None = None  # [B, T], likewise: number of windows of this length that hold each row
    parted: bool = False  # True: each row is learned from in one window only, which any of its rows draws
    reach: Array | None = None  # steps to each next observation, of the shape of `index`, if several are joined
    run: Array | None = None  # [B, T + 1]: index and following are its two ends
    fetch: Callable[[str, Array], Tree] | None = None  # set by the table
    readers: list[tuple[str, Reader]] | None = None  # changes by earlier adaptors, by column
    written: Array | None = None  # [N], rows that each env had written at `mark`
    version: int = -1  # of the index at `mark`
    era: object = None  # of the index at `mark`; None = any

    @property
    def successor(self) -> Array:
        """The slots of the next observations; of the shape of `index`."""
        if self.following is None:
            self.following = self.where.after(self.index, 1)
        return self.following

    @property
    def start(self) -> Array:
        """The first row of each window [B]."""
        return self.index if self.index.ndim == 1 else self.index[:, 0]

    @property
    def end(self) -> Array:
        """The last row of each window [B]; of a padded window the last real one."""
        if self.index.ndim == 1:
            return self.index
        end: Array = self.index[np.arange(len(self.index)), -1 if self.valid is None else self.count - 1]
        return end

    @property
    def count(self) -> Array:
        """Rows of each padded window [B], up to the last valid one."""
        assert self.valid is not None
        count: Array = self.valid.shape[1] - self.valid[:, ::-1].argmax(1)
        return count

    @property
    def step(self) -> Array:
        """The step of each row within its episode; of the shape of `index`."""
        return self.where.step(self.index)

    def mark(self) -> Rows:
        """Note the number of rows written so far, to detect rows that are replaced later."""
        index = self.where
        self.written, self.version, self.era = index.written.copy(), index.version, index.era
        return self

    def remain(self, slots: Array) -> Array:
        """Return flags of slots whose rows have not been replaced since they were picked."""
        index, remain = self.where, np.ones(slots.shape, np.bool_)
        if self.written is None or self.version == index.version:
            return remain
        if self.era not in (None, index.era):
            return ~remain
        remain &= index.stamp[slots] != EMPTY
        stored = slots[remain]
        # rows that the env wrote since then are newer than all rows that were picked
        remain[remain] = index.age(stored) >= (index.written - self.written)[index.env_of(stored)]
        return remain

    def stored(self, column: str, slots: Array) -> Tree:
        """Fetch a column (or a leaf of it, by dotted name) as it is stored, at slots of any shape, as tensors."""
        assert self.fetch is not None
        return self.fetch(column, slots)

    def gather(self, column: str, slots: Array) -> Tree:
        """Fetch a column with the changes of earlier adaptors; slots [B, …] begin with the batch."""
        values = self.stored(column, slots)
        if self.readers:
            root = column.partition(".")[0]
            for name, reader in self.readers:
                if name == root:
                    values = reader(column, values, slots)
        return values

    def through(self, column: str, reader: Reader) -> None:
        """Pass all later reads of a top-level column through a reader: (name, values, slots) -> values.

        A reader looks up other columns by `stored`, as `gather` may include later adaptors when it runs.
        """
        self.readers = [*(self.readers or ()), (column, reader)]

    def altered(self, column: str) -> bool:
        """Return True if an adaptor changed a top-level column."""
        return any(name == column for name, _ in self.readers or ())

    def onward(self, k: int) -> tuple[Array, Array]:
        """Return the slots of each row and of the `k` after it, and the number of these steps stored in its episode.

        Their shapes are [B, k + 1] and [B], of windows [B, T, k + 1] and [B, T]; the number of steps is 1 … k.
        """
        if k == 1:  # the sampler has checked this one
            return np.stack([self.index, self.successor], -1), np.ones(self.index.shape, np.int64)
        steps = np.arange(k + 1)
        slots = self.where.after(self.index[..., None], steps)
        return slots, self.where.within(slots, steps).sum(-1)


class Strategy(ABC):
    """The base of samplers and ejectors: a table calls its methods when episodes come and go.

    Arguments are arrays of episodes or slots. Only `on_add` gets single rows, from a single environment.
    """

    index: EpisodeIndex
    renewed: tuple[str, ...] = ("generator",)  # entries of its state that a fork starts from the beginning

    def bind(self, index: EpisodeIndex) -> None:
        """Set the index of the table; called once, by the table."""
        self.index = index

    def track(self, episodes: Array) -> None:
        """Note that these episodes [n] were closed."""

    def forget(self, episodes: Array) -> None:
        """Note that these episodes [n] are gone; later episodes get their numbers."""

    def state_dict(self) -> dict[str, Any]:
        """Return all state on which the next `pick` depends."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""

    def takes(self, state: Mapping[str, Any]) -> bool:
        """Return True if another run's state has all entries that a fork takes."""
        return self.state_dict().keys() <= {*state, *self.renewed}

    def forked(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return another run's state for a fork, with this new run's random numbers and counters."""
        own = self.state_dict()
        return {**state, **{name: own[name] for name in self.renewed if name in own}}


class Sampler(Strategy):
    """Draws the windows of a sample."""

    provides: tuple[str, ...] = ()  # "weight" where `pick` sets it
    by_burst = False  # True: draws all samples of a burst of updates at its start, when `begin_burst` is called
    # picks that were drawn ahead and not taken, each with what it depends on
    ahead: deque[tuple[Any, Rows]] | tuple[()] = ()

    def on_add(self, slots: Any) -> None:
        """Note that rows were written at these slots: an array, or a slice for a single environment."""

    @abstractmethod
    def pick(self, count: int, length: int) -> Rows:
        """Draw windows of `length` consecutive rows of one episode, each with its successor stored.

        Raises:
            RlrunError: there is no such window.
        """

    def begin_burst(self, times: int, count: int, length: int) -> None:
        """Draw the windows of the next `times` picks, which return them; only called if `by_burst`."""

    def draw_ahead(self, times: int, count: int, length: int) -> list[tuple[Any, Rows]]:
        """Return the next picks, each with the position before it; one that stays in `ahead` counts as not drawn."""
        return [(None, self.pick(count, length)) for _ in range(times)]

    def rows(self, start: Array, length: int, weight: Array | None = None) -> Rows:
        """Return the rows of windows of `length` that begin at the slots `start` [B]."""
        if length == 1:
            return Rows(start, None, self.index, weight)
        run = self.index.run(start, length + 1)
        return Rows(run[:, :-1], run[:, 1:], self.index, weight, run=run)

    @property
    def learns(self) -> bool:
        """Return True if `feedback` changes the next `pick`."""
        return type(self).feedback is not Sampler.feedback

    def feedback(self, rows: Rows, priority: Tensor) -> None:
        """Note the priorities of the rows of an earlier `pick`: [B] or [B, T]."""

    def moved(self, old: Array, new: Array) -> None:
        """Note that the index was resized, and rows moved from slots old [n] to new [n]."""

    def none(self, count: int, length: int) -> RlrunError:
        """Return the error of a table without a window."""
        rows, dropped = self.index.windows(1), self.index.too_short
        return RlrunError(
            f"memory: a sample of {count} windows needs one of {length} transitions; the table holds "
            f"{int(rows.sum())} transitions in {int((rows > 0).sum())} episodes, the longest of {int(rows.max())}"
            + (f"; {dropped} were shorter than memory.min_length and dropped" if dropped else "")
        )


class Uniform(Seeded, Sampler):
    """Draws every window with the same chance, however long its episode is.

    It draws slots of the written part of the table, and rejects those that do not begin a window. If it would reject
    most slots, it draws from a list of windows.

    Args:
        seed: of the draws.
        weighting: `windows`, or `episodes`: first an episode by its number of rows, then one of its windows. Longer
            windows of short episodes are then more likely.

    Raises:
        ConfigError: no such weighting.
    """

    renewed = ("generator", "stock")

    def __init__(self, *, seed: int = 0, weighting: Literal["windows", "episodes"] = "windows") -> None:
        require_one_of("weighting", weighting, WEIGHTINGS)
        super().__init__(seed)
        self.weighting = weighting
        self._before = self.generator.bit_generator.state  # the state before the stock was drawn
        self._stock = np.empty(0)
        self._used = 0
        self._slots: Array | None = None  # the stock as slots of an index of this extent
        self._extent = -1
        self._rate = 1.0  # share of draws that begin a window; learnt, so that one round is mostly enough

    def draw_ahead(self, times: int, count: int, length: int) -> list[tuple[Any, Rows]]:
        self._give_back()
        picks = []
        for _ in range(times):
            position = self.generator.bit_generator.state, self._before, self._stock, self._used, self._rate
            picks.append((position, self.pick(count, length)))
        return picks

    def _give_back(self) -> None:
        if self.ahead:
            state, self._before, self._stock, self._used, self._rate = self.ahead[0][0]
            self.generator.bit_generator.state, self._extent = state, -1
            self.ahead = ()

    def pick(self, count: int, length: int) -> Rows:
        self._give_back()
        if self.weighting == "episodes" and length > 1:
            return self.rows(self._by_episode(count, length), length)
        missed = count * (1.0 / self._rate - 1.0)
        drawn = count + int(missed + 3.0 * math.sqrt(missed)) + 1
        start = self._reject(drawn, length)
        accepted = len(start)
        if accepted < count:
            start = self._more(start, count, drawn, length)
        self._rate = max(0.95 * self._rate + 0.05 * accepted / drawn, 0.5)
        return self.rows(start[:count], length)

    def _more(self, start: Array, count: int, drawn: int, length: int) -> Array:
        if 8 * len(start) > drawn:  # worth another try
            again = drawn * (count - len(start)) // len(start) * 5 // 4 + 8
            start = np.concatenate([start, self._reject(again, length)])
        if len(start) < count:
            start = np.concatenate([start, self._enumerate(count - len(start), count, length)])
        return start

    def _reject(self, count: int, length: int) -> Array:
        index = self.index
        drawn = self._draw(count)
        if length == 1 and not index.margin:
            return drawn[index.complete.take(drawn, mode="clip")]
        drawn = drawn[index.complete.take(drawn, mode="clip")]
        return drawn[index.unbroken(drawn, index.after(drawn, length), length)]

    def _draw(self, count: int) -> Array:
        """Return random slots [n] of a stock, at a fifth of the time of single draws."""
        if self._used + count > len(self._stock):
            self._before = self.generator.bit_generator.state
            self._stock, self._used, self._extent = self.generator.random(max(STOCK, count)), 0, -1
        first, self._used = self._used, self._used + count
        extent = self.index.extent
        if extent != self._extent:  # the table is filling up, so these slots cannot be reused
            self._extent, self._slots = extent, None
            return self.index.spread(self._stock[first : self._used])
        if self._slots is None:
            self._slots = self.index.spread(self._stock)
        return self._slots[first : self._used]

    def moved(self, old: Array, new: Array) -> None:
        self._extent = -1

    def _enumerate(self, missing: int, count: int, length: int) -> Array:
        windows = self.index.windows(length)
        last = windows.cumsum()  # number of the first window after each episode
        if last[-1] == 0:
            raise self.none(count, length)
        number = self.generator.integers(0, last[-1], missing)
        episode = np.searchsorted(last, number, side="right")
        return self.index.window(episode, number - (last - windows)[episode])

    def _by_episode(self, count: int, length: int) -> Array:
        windows = self.index.windows(length)
        rows = np.where(windows > 0, self.index.windows(1), 0).cumsum()
        if rows[-1] == 0:
            raise self.none(count, length)
        episode = np.searchsorted(rows, self.generator.random(count) * rows[-1], side="right")
        return self.index.window(episode, (self.generator.random(count) * windows[episode]).astype(np.int64))

    def state_dict(self) -> dict[str, Any]:
        self._give_back()
        stock = {"before": self._before, "size": len(self._stock), "used": self._used}
        return super().state_dict() | {"stock": stock, "rate": self._rate}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        stock = state["stock"]
        self.ahead = ()
        self._before = stock["before"]
        self.generator.bit_generator.state = self._before
        self._stock, self._used, self._extent = self.generator.random(stock["size"]), stock["used"], -1
        super().load_state_dict(state)
        self._rate = state["rate"]

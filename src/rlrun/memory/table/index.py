"""The episode and the step of each slot of a table.

Every slot has a stamp: the episode's number in the high bits, the step within the episode in the low ones. A window of
T rows lies in one episode exactly if the stamps of its two ends differ by T. Stamps have 32 bits, and 64 once an
episode has too many rows or there are too many episodes.

An episode of L rows takes L + 1 slots; the last one has only the last observation. So every observation is stored once,
in a slot of its own. A row is complete once the observation after it is stored.

Later episodes get the numbers of those that left. There are two indices: in a `RingIndex` each env overwrites its
oldest rows; in a `PoolIndex` whole episodes leave, as an ejector chooses.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch

from rlrun.core.errors import RlrunError
from rlrun.core.typing import Array

NARROW, WIDE = 16, 32  # bits of a stamp that hold the step: of 32 bits, and of 64
EMPTY = -(1 << 30)  # so far below every stamp that no difference with it is a length
FREE, OPEN, CLOSED = 0, 1, 2
EVERY = slice(None)


class EpisodeIndex(ABC):
    """Open and closed episodes of `num_envs` envs in `size` slots.

    Args:
        num_envs: envs; each has one open episode at any time.
        size: slots, all envs together.
        min_length: rows from which an episode can be sampled; a shorter one is dropped when it ends.
        margin: rows before a served row that must be stored, too, unless the episode begins there.
    """

    # entries of a state beside slots, stamps and flags
    saved: ClassVar[tuple[str, ...]] = ("written", "open", "lane", "first", "status", "free")

    def __init__(self, *, num_envs: int, size: int, min_length: int = 1, margin: int = 0) -> None:
        self.num_envs = num_envs
        self.size = size
        self.min_length = min_length
        self.margin = margin
        self.version = 0  # changes whenever a window may have come or gone
        self.era = object()  # replaced when rows move to other slots, or are counted from zero again
        self.too_short = 0  # episodes dropped because they were shorter than min_length
        self.bits = NARROW if 2 * num_envs <= 1 << 31 - NARROW else WIDE
        self.stamp: Array = np.full(size, EMPTY, np.int32 if self.bits == NARROW else np.int64)
        self._left = 0  # rounds until a step may have too many bits; 0 = not known
        # one entry more, for the flag of the row before an episode's first
        self.complete = np.zeros(size + 1, np.bool_)
        # by env
        self.written = np.zeros(num_envs, np.int64)  # slots taken since the beginning
        self.open = np.arange(num_envs, dtype=np.int64)  # number of the open episode
        # by episode number
        self.lane = np.arange(num_envs, dtype=np.int64)
        self.first = np.zeros(num_envs, np.int64)  # what the env had written before the first row
        self.status = np.full(num_envs, OPEN, np.int8)
        self.free = np.empty(0, np.int64)
        self._settled = self.written.copy()  # by env: rows written at the last checkpoint
        self._rewritten = True  # stamps of all slots have changed since then
        self._counted: dict[int, tuple[int, Array]] = {}

    # -- writing -------------------------------------------------------------------------------

    @abstractmethod
    def advance(self, env_index: int | Array | None) -> Any:
        """Return the next slot of envs: [n], or a slice for a single env.

        env_index: a number, an array of numbers, or None for all envs.
        """

    def _write(self, rounds: int) -> None:
        """Note that each env writes up to `rounds` rows, and widen stamps before a step has too many bits."""
        self.version += 1
        self._left -= rounds
        if self._left < 0:
            longest = int((self.written - self.first[self.open]).max())
            if longest + rounds >= 1 << self.bits:  # the largest step stays unused: stamps must not touch
                self._widen()
            self._left = (1 << self.bits) - 1 - longest - rounds

    def _widen(self) -> None:
        """Change to stamps of 64 bits."""
        old, used = self.stamp, self.used()
        steps = old[used] & ((1 << self.bits) - 1)
        self.stamp = np.full(self.size, EMPTY, np.int64)
        self.stamp[used] = ((old[used] >> self.bits).astype(np.int64) << WIDE) + steps
        self.bits = WIDE
        self._rewritten = True

    def _join(self, envs: Any, previous: Array, slots: Array) -> None:
        """Note that the rows before these slots have their next observations; previous: their slots."""
        if self.min_length == 1:
            self.complete[previous] = True
            return
        taken = self.written[envs] - self.first[self.open[envs]]
        self.complete[previous[taken > self.min_length]] = True
        shown = slots[taken == self.min_length]  # long enough from now on: all its rows at once
        back = np.arange(1, self.min_length)
        earlier = self.before(shown[:, None], back)
        still = self.stamp[earlier] == self.stamp[shown][:, None] - back  # some may have left already
        self.complete[earlier[still]] = True

    @abstractmethod
    def extend(self, env_index: int, count: int) -> Array:
        """Return the next `count` slots of one env, at most as many as it has."""

    @abstractmethod
    def drop(self, episodes: Array) -> None:
        """Drop closed episodes [n]; their numbers become free."""

    @abstractmethod
    def abandon(self) -> None:
        """Drop the rows of open episodes, which begin again."""

    @abstractmethod
    def resize(self, size: int) -> tuple[Array, Array]:
        """Grow to `size` slots; return the old slots in use, and their new numbers."""

    def close(self, envs: Array) -> tuple[Any, Array]:
        """End the open episodes of envs [n] and open the next.

        Returns the slots of their last observations, and the numbers of the closed episodes [n]; -1 for episodes that
        were too short and are dropped.
        """
        slots = self.advance(envs)
        return slots, self.end(envs, slots)

    def end(self, envs: Array, slots: Any) -> Array:
        """End the open episodes of envs whose newest slots have the last observations, as `close` does."""
        episodes = self.open[envs]
        short = self.written[envs] - self.first[episodes] <= self.min_length
        self.status[episodes] = CLOSED
        self._end(episodes, slots)
        if len(self.free) < len(envs):
            self.grow()
        fresh, self.free = self.free[: len(envs)], self.free[len(envs) :]
        self._begin(fresh, envs)
        if short.any():
            self.too_short += int(np.count_nonzero(short))
            self.drop(episodes[short])
            episodes = np.where(short, -1, episodes)
        return episodes

    def _begin(self, episodes: Array, envs: Array) -> None:
        self.open[envs] = episodes
        self.lane[episodes], self.first[episodes], self.status[episodes] = envs, self.written[envs], OPEN

    @abstractmethod
    def _end(self, episodes: Array, slots: Any) -> None:
        """Note that episodes are over; slots: of their last observations."""

    def grow(self) -> None:
        """Double the numbers that episodes can have; at least as many as there are envs become free."""
        size = len(self.lane)
        if 2 * size > 1 << 31 - NARROW and self.bits == NARROW:
            self._widen()
        self.lane, self.first = grown(self.lane, 2 * size), grown(self.first, 2 * size)
        self.status = grown(self.status, 2 * size, FREE)
        self.free = np.concatenate([self.free, np.arange(size, 2 * size, dtype=np.int64)])
        self._counted.clear()

    # -- episodes ------------------------------------------------------------------------------

    @abstractmethod
    def at(self, episodes: Array, steps: Array | int) -> Array:
        """Return the slots of stored steps of episodes."""

    @abstractmethod
    def oldest(self, episodes: Array | slice = EVERY) -> Array:
        """Return the step of the oldest row that can be served, of some episodes or by number of all."""

    @abstractmethod
    def newest(self, episodes: Array | slice = EVERY) -> Array:
        """Return the step of the newest stored observation, of some episodes or by number of all; -1 for none."""

    def held(self, episodes: Array) -> Array:
        """Return the slots that episodes [n] take, including rows whose earlier frames were overwritten."""
        oldest = np.maximum(self.oldest(episodes) - self.margin, 0)
        slots: Array = self.newest(episodes) - oldest + 1
        return slots

    def alive(self) -> Array:
        """Return flags, by number, of the episodes that can be sampled."""
        shown: Array = (self.status == CLOSED) | ((self.status == OPEN) & (self.newest() + 1 >= self.min_length))
        return shown

    def closed(self) -> Array:
        """Return flags, by number, of the episodes that are over and at least partly stored."""
        over: Array = (self.status == CLOSED) & (self.newest() >= self.oldest() - self.margin)
        return over

    def windows(self, length: int) -> Array:
        """Return the number of windows of `length` complete rows in each episode, by number; cached until a change."""
        version, counts = self._counted.get(length, (-1, None))
        if version != self.version or counts is None:
            counts = np.maximum(self.newest() - self.oldest() - length + 1, 0)
            counts[~self.alive()] = 0
            self._counted[length] = self.version, counts
        return counts

    def window(self, episodes: Array, number: Array) -> Array:
        """Return the first slot of an episode's window, the oldest window being number 0."""
        return self.at(episodes, self.oldest(episodes) + number)

    # -- slots ---------------------------------------------------------------------------------

    def episode(self, slots: Array) -> Array:
        """Return the number of the episode at each slot."""
        number: Array = (self.stamp[slots] >> self.bits).astype(np.int64)
        return number

    def step(self, slots: Array) -> Array:
        """Return the step within its episode at each slot."""
        number: Array = (self.stamp[slots] & ((1 << self.bits) - 1)).astype(np.int64)
        return number

    def env_of(self, slots: Array) -> Array:
        """Return the number of the env that wrote each slot."""
        env_index: Array = self.lane[self.episode(slots)]
        return env_index

    def age(self, slots: Array) -> Array:
        """Return the age of each slot: the slots that its env has taken since."""
        age: Array = self.written[self.env_of(slots)] - 1 - self.first[self.episode(slots)] - self.step(slots)
        return age

    @abstractmethod
    def full(self) -> bool:
        """Return True if every slot is in use."""

    @property
    @abstractmethod
    def extent(self) -> int:
        """The number of slots to draw from; `spread` depends on nothing else."""

    @abstractmethod
    def spread(self, uniform: Array) -> Array:
        """Map numbers [n] from [0, 1) evenly to slots that include all rows; some may be free."""

    @abstractmethod
    def after(self, slots: Array, steps: int | Array) -> Array:
        """Return the slot `steps` steps after each; undefined if the episode lacks it."""

    def before(self, slots: Array, steps: int | Array) -> Array:
        """Return the slot `steps` steps before each; undefined if the episode lacks it."""
        return self.after(slots, -np.asarray(steps))

    @abstractmethod
    def run(self, start: Array, length: int) -> Array:
        """Return the slots [n, length] of successive rows from each start on."""

    def unbroken(self, slots: Array, ends: Array, length: int) -> Array:
        """Return flags of windows of `length` rows, from slot to end, that are complete rows of one episode."""
        here = self.stamp.take(slots, mode="clip")
        valid: Array = self.stamp.take(ends, mode="clip") - here == length
        valid &= self.complete.take(slots, mode="clip")
        if self.margin:
            steps = here & ((1 << self.bits) - 1)
            back = np.minimum(steps, self.margin)
            valid &= here - self.stamp.take(self.before(slots, back), mode="clip") == back
        return valid

    def within(self, slots: Array, steps: Array) -> Array:
        """Return flags [..., k] of steps after the first in runs of slots [..., k + 1] that are complete rows."""
        stamp = self.stamp.take(slots, mode="clip")
        valid: Array = stamp[..., 1:] - stamp[..., :1] == steps[1:]
        return valid

    # -- checkpoints ---------------------------------------------------------------------------

    def used(self) -> Array:
        """Return the slots in use."""
        return np.flatnonzero(self.stamp != EMPTY)

    def changed(self) -> Array:
        """Return the slots that were written since `settle` and are in use, ascending."""
        if self._rewritten:
            return self.used()
        slots = np.sort(self._taken())
        occupied: Array = slots[self.stamp[slots] != EMPTY]
        return occupied

    @abstractmethod
    def _taken(self) -> Array:
        """Return the slots that were written since `settle`; some may be free again."""

    def settle(self) -> None:
        """Record changes from now on."""
        self._settled = self.written.copy()
        self._rewritten = False

    def state_dict(self) -> dict[str, Any]:
        """Return the index, with stamps of the slots in use."""
        used = self.used()
        rows = {"used": torch.from_numpy(used), "stamp": torch.from_numpy(self.stamp[used])}
        return self.books() | rows

    def books(self) -> dict[str, Any]:
        """Return the index without the slots in use and their stamps."""
        state = {name: torch.from_numpy(getattr(self, name).copy()) for name in self.saved}
        state["complete"] = torch.from_numpy(self.complete[: self.size][self.stamp != EMPTY])
        return state | {"size": self.size, "too_short": self.too_short, "bits": self.bits}

    def require_size(self, state: Mapping[str, Any]) -> None:
        """Refuse the state of a table of another size, with a RlrunError."""
        envs, size = len(state["written"]), state["size"]
        if (envs, size) != (self.num_envs, self.size):
            raise RlrunError(
                f"memory: the saved table has {envs} envs and room for {size - envs} transitions; "
                f"this one has {self.num_envs} and room for {self.size - self.num_envs}"
            )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state of a table of the same size.

        Raises:
            RlrunError: the sizes differ.
        """
        self.require_size(state)
        arrays = {name: state[name].numpy() for name in self.saved}
        used, stamp, bits = state["used"].numpy(), state["stamp"].numpy(), state["bits"]
        for name, values in arrays.items():
            setattr(self, name, values.copy())
        self.bits, self._left = bits, 0
        self.stamp = np.full(self.size, EMPTY, np.int32 if self.bits == NARROW else np.int64)
        self.complete[:] = False
        self.stamp[used], self.complete[used] = stamp, state["complete"].numpy()
        self.too_short = state["too_short"]
        self.version += 1
        self.era = object()
        self._rewritten = True
        self._counted.clear()


def env_numbers(env_index: int | Array | None, num_envs: int) -> Array:
    """Return the numbers of envs that are given as a number, numbers, a choice of bools, or None for all."""
    if env_index is None:
        return np.arange(num_envs)
    envs = np.atleast_1d(np.asarray(env_index))
    return np.flatnonzero(envs) if envs.dtype == bool else envs


def grown(values: Array, size: int, fill: int = 0) -> Array:
    """Return values [n, …], extended by `fill` to `size` if they are fewer."""
    missing = size - len(values)
    return (
        values if missing <= 0 else np.concatenate([values, np.full((missing, *values.shape[1:]), fill, values.dtype)])
    )


def runs(begin: Array, lengths: Array) -> Array:
    """Return `lengths[i]` whole numbers from `begin[i]` on for each i, one after another."""
    ends = np.cumsum(lengths)
    numbers: Array = np.repeat(begin - ends + lengths, lengths) + np.arange(int(lengths.sum()))
    return numbers

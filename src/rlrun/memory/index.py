"""Where episodes lie in the rings of a table.

Each lane owns `slots` neighbouring slots and writes them round and round. A lane counts what
it has written; the slot of count c is `c % slots`, and the counts below `written - slots` are
overwritten. An episode of L steps takes L + 1 slots: the last holds only the last observation,
so the observation after a row is always in the slot after it and never stored twice.

Every slot carries a stamp: the episode's number in the high bits, the step within the episode in
the low ones. Two slots T apart belong to one unbroken episode exactly if their stamps differ by T,
so a window is tested at its two ends, whatever its length. Numbers of dropped episodes are used
again, but only once no slot carries them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rlrun.errors import RlrunError
from rlrun.typing import Array

STEP_BITS = 32
EMPTY = -(1 << 62)  # so far below every stamp that no difference with it is a length
OPEN = -1


class EpisodeIndex:
    """Open and closed episodes of `num_envs` lanes, `slots` slots each."""

    def __init__(self, *, num_envs: int, slots: int) -> None:
        self.num_envs = num_envs
        self.slots = slots
        self.version = 0  # changes whenever a window may have come or gone
        self.stamp = np.full(num_envs * slots, EMPTY, np.int64)
        self.base = np.arange(num_envs, dtype=np.int64) * slots
        self.written = np.zeros(num_envs, np.int64)
        self.open = np.arange(num_envs, dtype=np.int64)  # number of each lane's open episode
        # by episode number; first and last are counts of the lane, last is OPEN until the episode is closed
        self.lane = np.arange(num_envs, dtype=np.int64)
        self.first = np.zeros(num_envs, np.int64)
        self.last = np.full(num_envs, OPEN, np.int64)
        self.free = np.empty(0, np.int64)
        self._offset = self.open << STEP_BITS  # stamp of a lane's next slot, less its count
        self._counted: dict[int, tuple[int, Array]] = {}

    def advance(self, lane: int | Array | None) -> Any:
        """Give the lanes their next slot: [n], or a slice for a single lane.

        lane: a number, an array of numbers, or None for all lanes.
        """
        self.version += 1
        if lane is None and self.num_envs == 1:
            lane = 0
        if isinstance(lane, (int, np.integer)):  # no arrays of one: half the time for a single environment
            before = int(self.written[lane])
            slot = int(lane) * self.slots + before % self.slots
            self.stamp[slot] = self._offset[lane] + before
            self.written[lane] = before + 1
            return slice(slot, slot + 1)
        lanes = slice(None) if lane is None else lane
        count = self.written[lanes]
        slots: Array = self.base[lanes] + count % self.slots
        self.stamp[slots] = self._offset[lanes] + count
        self.written[lanes] += 1
        return slots

    def close(self, lanes: Array) -> tuple[Array, Any]:
        """End the open episodes of lanes [n] and open the next; there must be n free numbers.

        Returns the numbers of the ended ones, and the slots for their last observations.
        """
        slots = self.advance(lanes)
        ended = self.open[lanes]
        written = self.written[lanes]
        self.last[ended] = written - 1
        fresh, self.free = self.free[: len(lanes)], self.free[len(lanes) :]
        self.open[lanes] = fresh
        self.lane[fresh], self.first[fresh], self.last[fresh] = lanes, written, OPEN
        self._offset[lanes] = (fresh << STEP_BITS) - written
        return ended, slots

    def overwritten(self) -> Array:
        """Return the closed episodes of which no slot is left."""
        gone = (self.last != OPEN) & (self.last < self.written[self.lane] - self.slots)
        gone[self.free] = False
        return np.flatnonzero(gone)

    def drop(self, episodes: Array) -> None:
        """Forget closed episodes [n]; their numbers become free."""
        self.version += 1
        alive = episodes[self.last[episodes] >= self.written[self.lane[episodes]] - self.slots]
        if len(alive):
            self.stamp[np.isin(self.stamp >> STEP_BITS, alive)] = EMPTY
        self.last[episodes] = self.first[episodes] = 0  # a window count of zero until the number is used again
        self.free = np.concatenate([self.free, episodes])

    def grow(self) -> None:
        """Double the numbers that episodes can have."""
        size = len(self.lane)
        fresh = np.zeros(size, np.int64)
        self.lane, self.first, self.last = (np.concatenate([old, fresh]) for old in (self.lane, self.first, self.last))
        self.free = np.concatenate([self.free, np.arange(size, 2 * size, dtype=np.int64)])
        self._counted.clear()

    def after(self, slots: Array, steps: int | Array) -> Array:
        """Return the slot so many steps after each slot, within its lane's ring; fewer than a whole round."""
        moved = slots + steps
        # a single lane needs no division, which takes as long as all the rest
        passed = moved >= self.slots if self.num_envs == 1 else moved % self.slots < steps
        return np.subtract(moved, self.slots, out=moved, where=passed)

    def run(self, start: Array, length: int) -> Array:
        """Return the slots [n, length] that follow one another from each start, itself the first."""
        steps = np.arange(length)
        slots: Array = start[:, None] + steps
        split = np.flatnonzero(start % self.slots > self.slots - length)  # few go over the end of their ring
        slots[split] = self.after(start[split, None], steps)
        return slots

    def unbroken(self, slots: Array, ends: Array, length: int) -> Array:
        """Tell which windows of `length` rows, slot up to end, are complete rows of a single episode."""
        valid: Array = self.stamp.take(ends, mode="clip") - self.stamp.take(slots, mode="clip") == length
        return valid

    def within(self, slots: Array, steps: Array) -> Array:
        """Tell which of the steps from the first of each run of slots [..., k + 1] are complete rows: [..., k]."""
        stamp = self.stamp.take(slots, mode="clip")
        valid: Array = stamp[..., 1:] - stamp[..., :1] == steps[1:]
        return valid

    def episode(self, slots: Array) -> Array:
        """Return the number of the episode at each slot."""
        number: Array = self.stamp[slots] >> STEP_BITS
        return number

    def bounds(self) -> tuple[Array, Array]:
        """Return the counts of the oldest stored and the newest observation of every episode, by number."""
        written = self.written[self.lane]
        return np.maximum(self.first, written - self.slots), np.where(self.last == OPEN, written - 1, self.last)

    def windows(self, length: int) -> Array:
        """Return how many windows of `length` rows each episode holds, by number; kept until the index changes."""
        version, counts = self._counted.get(length, (-1, None))
        if version != self.version or counts is None:
            oldest, newest = self.bounds()
            counts = np.maximum(newest - oldest - length + 1, 0)
            counts[self.free] = 0
            self._counted[length] = self.version, counts
        return counts

    def window(self, episodes: Array, number: Array) -> Array:
        """Return the first slot of an episode's window, the oldest window being number 0."""
        lane = self.lane[episodes]
        oldest = np.maximum(self.first[episodes], self.written[lane] - self.slots)
        slot: Array = self.base[lane] + (oldest + number) % self.slots
        return slot

    _arrays = ("stamp", "written", "open", "lane", "first", "last", "free", "_offset")

    def state_dict(self) -> dict[str, Any]:
        """Return the index as tensors that share its memory."""
        return {name.lstrip("_"): torch.from_numpy(getattr(self, name)) for name in self._arrays}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back a state of a table of the same size.

        Raises:
            RlrunError: the sizes differ.
        """
        lanes, slots = len(state["written"]), len(state["stamp"]) // len(state["written"])
        if (lanes, slots) != (self.num_envs, self.slots):
            raise RlrunError(
                f"memory: the saved table has {lanes} lanes of {slots - 1} transitions; "
                f"this one has {self.num_envs} of {self.slots - 1}"
            )
        for name in self._arrays:
            setattr(self, name, state[name.lstrip("_")].numpy().copy())
        self.version += 1
        self._counted.clear()

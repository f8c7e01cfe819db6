"""Rings: each env overwrites its oldest rows."""

from typing import Any, ClassVar

import numpy as np

from rlrun.core.typing import Array
from rlrun.memory.table.index import CLOSED, EMPTY, EVERY, FREE, OPEN, EpisodeIndex, grown

SLOT, STAMP, COUNT = range(3)


class RingIndex(EpisodeIndex):
    """Each env has a ring of `slots` neighboring slots.

    An env counts its rows; row c is in slot `c % slots`, and rows below `written - slots` are overwritten. An episode
    leaves row by row.
    """

    saved: ClassVar[tuple[str, ...]] = (*EpisodeIndex.saved, "last", "_by_env", "_previous")

    def __init__(self, *, num_envs: int, slots: int, min_length: int = 1, margin: int = 0) -> None:
        super().__init__(num_envs=num_envs, size=num_envs * slots, min_length=min_length, margin=margin)
        self.slots = slots
        self.base = np.arange(num_envs, dtype=np.int64) * slots
        self.last = np.zeros(num_envs, np.int64)  # by number: the count of a closed episode's last observation
        # next slot, next stamp and count of each env: side by side, because all move together
        self._by_env = np.stack([self.base, self.open << self.bits, self.written])
        self.written = self._by_env[COUNT]
        # slot of each env's newest row, if its episode is open
        self._previous = np.full(num_envs, self.size, np.int64)
        self._room = slots  # rounds until the first env is at the end of its ring

    def advance(self, env_index: int | Array | None) -> Any:
        self._write(1)
        if self.num_envs == 1 and env_index is None:
            env_index = 0
        if isinstance(env_index, (int, np.integer)):
            return self._advance_one(int(env_index))
        if env_index is not None:
            return self._advance_some(env_index)
        slots = self._by_env[SLOT].copy()
        self.stamp[slots] = self._by_env[STAMP]
        self.complete[slots] = False
        self._by_env += 1
        self._join(slice(None), self._previous, slots)
        self._previous = slots
        self._room -= 1
        if self._room == 0:
            self._wrap()
        return slots

    def _advance_one(self, env_index: int) -> Any:
        """Advance without arrays of one entry, in half the time."""
        if self.min_length > 1:
            return self._advance_some(np.array([env_index]))
        envs = self._by_env
        slot, stamp = int(envs[SLOT, env_index]), envs[STAMP, env_index]
        self.stamp[slot] = stamp
        self.complete[slot] = False
        self.complete[self._previous[env_index]] = True
        self._previous[env_index] = slot
        envs[SLOT, env_index] = slot + 1 if (slot + 1) % self.slots else slot + 1 - self.slots
        envs[STAMP, env_index] = stamp + 1
        envs[COUNT, env_index] += 1
        if self.num_envs > 1:
            self._room = min(self._room, self._rest())
        return slice(slot, slot + 1)

    def _advance_some(self, envs: Array) -> Array:
        slots: Array = self._by_env[SLOT, envs]
        self.stamp[slots] = self._by_env[STAMP, envs]
        self.complete[slots] = False
        self._by_env[:, envs] += 1
        self._join(envs, self._previous[envs], slots)
        self._previous[envs] = slots
        self._wrap()
        return slots

    def _widen(self) -> None:
        super()._widen()
        self._by_env[STAMP] = (self.open << self.bits) + self.written - self.first[self.open]

    def _wrap(self) -> None:
        self._by_env[SLOT] -= self.slots * (self._by_env[SLOT] - self.base == self.slots)
        self._room = self._rest()

    def _rest(self) -> int:
        return self.slots - int((self._by_env[SLOT] - self.base).max())

    def extend(self, env_index: int, count: int) -> Array:
        self._write(count)
        slot, stamp = int(self._by_env[SLOT, env_index]), int(self._by_env[STAMP, env_index])
        base = int(self.base[env_index])
        slots: Array = base + (slot - base + np.arange(count)) % self.slots
        self.stamp[slots] = stamp + np.arange(count)
        self.complete[self._previous[env_index]] = True
        self.complete[slots] = True
        self.complete[slots[-1]] = False
        self._previous[env_index] = slots[-1]
        self._by_env[:, env_index] += count
        self._by_env[SLOT, env_index] = base + (slot - base + count) % self.slots
        self._room = self._rest()
        return slots

    def _end(self, episodes: Array, slots: Any) -> None:
        envs = self.lane[episodes]
        self.last[episodes] = self.written[envs] - 1
        self._previous[envs] = self.size  # a last observation has no next row

    def _begin(self, episodes: Array, envs: Array) -> None:
        super()._begin(episodes, envs)
        self._by_env[STAMP, envs] = episodes << self.bits

    def grow(self) -> None:
        super().grow()
        self.last = grown(self.last, len(self.lane))

    def gone(self) -> Array:
        """Return the closed episodes that are overwritten completely."""
        over = (self.status == CLOSED) & (self.last < self._oldest_counts()[self.lane])
        return np.flatnonzero(over)

    def drop(self, episodes: Array) -> None:
        self.version += 1
        alive = episodes[self.last[episodes] >= self._oldest_counts()[self.lane[episodes]]]
        for first, last, env_index in zip(self.first[alive], self.last[alive], self.lane[alive], strict=True):
            oldest = max(first, self.written[env_index] - self.slots, 0)
            slots = self.base[env_index] + np.arange(oldest, last + 1) % self.slots
            self.stamp[slots], self.complete[slots] = EMPTY, False
        self.status[episodes] = FREE
        self.free = np.concatenate([self.free, episodes])

    def abandon(self) -> None:
        self.version += 1
        slots = np.flatnonzero(self.status[np.maximum(self.stamp, 0) >> self.bits] == OPEN)
        slots = slots[self.stamp[slots] != EMPTY]
        self.stamp[slots], self.complete[slots] = EMPTY, False
        self.first[self.open] = self.written
        self._by_env[STAMP] = self.open << self.bits
        self._previous = np.full(self.num_envs, self.size, np.int64)

    def restart(self) -> None:
        """Begin all rings at slot 0; no rows are stored, and only the open episodes are left."""
        self._by_env[SLOT], self._by_env[COUNT] = self.base, 0
        self.first[:], self.last[:] = 0, 0
        self._room = self.slots
        self._rewritten, self.era = True, object()  # counts begin at 0

    def at(self, episodes: Array, steps: Array | int) -> Array:
        slot: Array = self.base[self.lane[episodes]] + (self.first[episodes] + steps) % self.slots
        return slot

    def oldest(self, episodes: Array | slice = EVERY) -> Array:
        overwritten: Array = np.maximum(self._oldest_counts()[self.lane[episodes]] - self.first[episodes], 0)
        return overwritten if not self.margin else overwritten + self.margin * (overwritten > 0)

    def newest(self, episodes: Array | slice = EVERY) -> Array:
        written = self.written[self.lane[episodes]] - 1
        return np.where(self.status[episodes] == CLOSED, self.last[episodes], written) - self.first[episodes]

    def full(self) -> bool:
        return bool((self.written >= self.slots).all())

    @property
    def extent(self) -> int:
        if self.num_envs == 1:
            return min(int(self.written[0]), self.slots)
        return min(int(self.written.max()), self.slots) * self.num_envs

    def spread(self, uniform: Array) -> Array:
        extent = self.extent
        drawn: Array = (uniform * extent).astype(np.int64)
        if self.num_envs > 1 and extent < self.size:
            filled = extent // self.num_envs
            drawn += drawn // max(filled, 1) * (self.slots - filled)
        return drawn

    def after(self, slots: Array, steps: int | Array) -> Array:
        moved: Array = slots + steps
        if self.num_envs == 1 and isinstance(steps, int) and steps == 1:  # half the time of the general case
            moved[moved == self.slots] = 0
            return moved
        if self.num_envs == 1:
            return moved % self.slots
        base = slots - slots % self.slots
        inside: Array = (moved - base) % self.slots
        inside += base
        return inside

    def run(self, start: Array, length: int) -> Array:
        steps = np.arange(length)
        slots: Array = start[:, None] + steps
        split = np.flatnonzero(start % self.slots > self.slots - length)  # few reach the end of their ring
        slots[split] = self.after(start[split, None], steps)
        return slots

    def resize(self, size: int) -> tuple[Array, Array]:
        old, starts = self.used(), self._oldest_counts()
        env_index = old // self.slots
        oldest = starts[env_index]
        count = (old - oldest) % self.slots  # from each env's oldest row, with which its ring begins
        wider = RingIndex(num_envs=self.num_envs, slots=size // self.num_envs)
        wider.stamp = wider.stamp.astype(self.stamp.dtype)
        new = wider.base[env_index] + count
        wider.stamp[new], wider.complete[new] = self.stamp[old], self.complete[old]
        inside = self._previous < self.size
        self._by_env[COUNT] -= starts
        self.first -= starts[self.lane]
        self.last -= starts[self.lane]
        self._previous = np.where(inside, wider.base + self.written - 1, wider.size)
        self.stamp, self.complete, self.base = wider.stamp, wider.complete, wider.base
        self.slots, self.size = wider.slots, wider.size
        self._by_env[SLOT] = self.base + self.written
        self._wrap()
        self.version += 1
        self._rewritten, self.era = True, object()
        self._counted.clear()
        return old, new

    def _oldest_counts(self) -> Array:
        """Return the count of each env's oldest slot that is not overwritten."""
        starts: Array = np.maximum(self.written - self.slots, 0)
        return starts

    def _taken(self) -> Array:
        since = np.maximum(self._settled, self._oldest_counts())
        envs = np.flatnonzero(self.written > since)
        runs = [
            self.base[env_index] + np.arange(since[env_index], self.written[env_index]) % self.slots
            for env_index in envs
        ]
        return np.concatenate([np.empty(0, np.int64), *runs])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.written = self._by_env[COUNT]
        self._room = self._rest()

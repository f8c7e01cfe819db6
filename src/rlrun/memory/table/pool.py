"""A pool of slots, from which an ejector drops whole episodes."""

from typing import Any, ClassVar

import numpy as np
import torch

from rlrun.core.errors import RlrunError
from rlrun.core.typing import Array
from rlrun.memory.table.index import CLOSED, EMPTY, EVERY, FREE, OPEN, EpisodeIndex, env_numbers, grown, runs

ROOM = 16  # entries that a new episode gets in the log


class PoolIndex(EpisodeIndex):
    """Slots come from a stack of free ones, and return to it when their episode is dropped.

    The rows of an episode are at any slots. A log has their numbers, in one contiguous section for each episode. A full
    section moves to the end of the log with twice the room; a full log is compacted. Rows never move.
    """

    saved: ClassVar[tuple[str, ...]] = (*EpisodeIndex.saved, "rows", "gone", "_previous")

    def __init__(self, *, num_envs: int, size: int, min_length: int = 1, margin: int = 0) -> None:
        super().__init__(num_envs=num_envs, size=size, min_length=min_length, margin=margin)
        # by number: position of step 0 in the log, end of the section, slots taken, steps lost at the front
        self.start = np.arange(num_envs, dtype=np.int64) * ROOM
        self.limit = self.start + ROOM
        self.rows = np.zeros(num_envs, np.int64)
        self.gone = np.zeros(num_envs, np.int64)
        self.log = np.zeros(2 * size + 2 * ROOM * num_envs, np.int32 if size < 1 << 31 else np.int64)
        self._tip = ROOM * num_envs
        self._previous = np.full(num_envs, size, np.int64)
        self._stack = np.arange(size, dtype=np.int64)[::-1].copy()  # the next free slot is the last of `vacant`
        self.vacant = size
        self._high = 0  # slots from here on were never taken

    def advance(self, env_index: int | Array | None) -> Any:
        envs = env_numbers(env_index, self.num_envs)
        self._write(1)
        episodes = self.open[envs]
        places = self.start[episodes] + self.rows[episodes]
        if (places >= self.limit[episodes]).any():
            for episode in episodes[places >= self.limit[episodes]].tolist():
                self._reserve(episode, 1)
            places = self.start[episodes] + self.rows[episodes]
        slots = self._take(len(envs))
        self.log[places] = slots
        self.stamp[slots] = (episodes << self.bits) + self.rows[episodes]
        self.rows[episodes] += 1
        self.written[envs] += 1
        self._join(envs, self._previous[envs], slots)
        self._previous[envs] = slots
        return slots

    def extend(self, env_index: int, count: int) -> Array:
        self._write(count)
        episode = int(self.open[env_index])
        if self.start[episode] + self.rows[episode] + count > self.limit[episode]:
            self._reserve(episode, count)
        place, row = int(self.start[episode] + self.rows[episode]), int(self.rows[episode])
        slots = self._take(count)
        self.log[place : place + count] = slots
        self.stamp[slots] = (episode << self.bits) + row + np.arange(count)
        self.rows[episode] += count
        self.written[env_index] += count
        self.complete[self._previous[env_index]] = True
        self.complete[slots[:-1]] = True
        self._previous[env_index] = slots[-1]
        return slots

    def _take(self, count: int) -> Array:
        if count > self.vacant:
            raise RlrunError(f"memory: {count} rows are to be stored, and {self.vacant} slots are free")
        self.vacant -= count
        slots = self._stack[self.vacant : self.vacant + count][::-1].copy()
        self._high = max(self._high, int(slots.max(initial=-1)) + 1)
        return slots

    def _reserve(self, episode: int, more: int) -> None:
        """Move an episode's section to the end of the log, with room for `more` rows and for twice its size."""
        length = int(self.rows[episode] - self.gone[episode])
        room = max(2 * length, length + more, ROOM)
        if self._tip + room > len(self.log):
            self._lay_out(self.slots_of(np.flatnonzero(self.status != FREE)), room)
        old, new = int(self.start[episode] + self.gone[episode]), self._tip
        self.log[new : new + length] = self.log[old : old + length]
        self.start[episode] = new - self.gone[episode]
        self.limit[episode] = self._tip = new + room

    def _lay_out(self, slots: Array, room: int) -> None:
        """Write the log again, with space for `room` more; slots: of all episodes by number, one after another."""
        episodes = np.flatnonzero(self.status != FREE)
        lengths = (self.rows - self.gone)[episodes]
        wanted = np.where(self.status[episodes] == CLOSED, lengths, np.maximum(2 * lengths, ROOM))
        begin = np.cumsum(wanted) - wanted
        self._tip = int(wanted.sum())
        self.log = np.zeros(max(len(self.log), 2 * (self._tip + room)), self.log.dtype)
        self.log[runs(begin, lengths)] = slots
        self.start[episodes] = begin - self.gone[episodes]
        self.limit[episodes] = begin + wanted

    def _end(self, episodes: Array, slots: Any) -> None:
        self._previous[self.lane[episodes]] = self.size  # a last observation has no next row

    def _begin(self, episodes: Array, envs: Array) -> None:
        super()._begin(episodes, envs)
        self.rows[episodes] = self.gone[episodes] = 0
        self.start[episodes] = self.limit[episodes] = 0  # no section in the log until the first row

    def grow(self) -> None:
        super().grow()
        for name in ("start", "limit", "rows", "gone"):
            setattr(self, name, grown(getattr(self, name), len(self.lane)))

    def slots_of(self, episodes: Array) -> Array:
        """Return all slots of episodes [n], one after another."""
        lengths = (self.rows - self.gone)[episodes]
        slots: Array = self.log[runs((self.start + self.gone)[episodes], lengths)].astype(np.int64)
        return slots

    def drop(self, episodes: Array) -> None:
        self.version += 1
        self._vacate(self.slots_of(episodes))
        self.status[episodes] = FREE
        self.free = np.concatenate([self.free, episodes])

    def abandon(self) -> None:
        self.version += 1
        self._vacate(self.slots_of(self.open))
        self.rows[self.open] = self.gone[self.open] = self.start[self.open] = self.limit[self.open] = 0
        self.first[self.open] = self.written
        self._previous = np.full(self.num_envs, self.size, np.int64)

    def shorten(self, count: int) -> None:
        """Free at least `count` slots at the front of the longest open episodes."""
        self.version += 1
        while count > 0:
            lengths = (self.rows - self.gone) * (self.status == OPEN)
            longest = int(lengths.argmax())
            lost = min(count, int(lengths[longest]) - 1)
            if lost < 1:
                raise RlrunError("memory.length: the memory has no place for one more row of each environment")
            first = int(self.start[longest] + self.gone[longest])
            self._vacate(self.log[first : first + lost].astype(np.int64))
            self.gone[longest] += lost
            count -= lost

    def _vacate(self, slots: Array) -> None:
        self.stamp[slots], self.complete[slots] = EMPTY, False
        self._stack[self.vacant : self.vacant + len(slots)] = slots[::-1]  # to be taken again in the same order
        self.vacant += len(slots)

    def at(self, episodes: Array, steps: Array | int) -> Array:
        slot: Array = self.log.take(self.start[episodes] + steps, mode="clip").astype(np.int64)
        return slot

    def oldest(self, episodes: Array | slice = EVERY) -> Array:
        gone = self.gone[episodes]
        return gone if not self.margin else gone + self.margin * (gone > 0)

    def newest(self, episodes: Array | slice = EVERY) -> Array:
        return self.rows[episodes] - 1

    def full(self) -> bool:
        return self.vacant == 0

    @property
    def extent(self) -> int:
        return self._high

    def spread(self, uniform: Array) -> Array:
        return (uniform * self._high).astype(np.int64)

    def after(self, slots: Array, steps: int | Array) -> Array:
        stamp = np.maximum(self.stamp.take(slots, mode="clip"), 0)
        return self.at(stamp >> self.bits, (stamp & ((1 << self.bits) - 1)) + steps)

    def run(self, start: Array, length: int) -> Array:
        return self.after(start[:, None], np.arange(length))

    def resize(self, size: int) -> tuple[Array, Array]:
        used, more = self.used(), size - self.size
        self.complete[-1] = False
        self.complete, self.stamp = grown(self.complete, size + 1), grown(self.stamp, size, EMPTY)
        self._previous[self._previous == self.size] = size
        fresh = np.arange(self.size, size, dtype=np.int64)[::-1]
        self._stack = grown(np.concatenate([fresh, self._stack[: self.vacant]]), size)
        self.size = size
        self.vacant += more
        self.version += 1
        self._rewritten = True
        return used, used

    def _taken(self) -> Array:
        since = self._settled[self.lane] - self.first  # the first new step of each episode
        fresh = np.flatnonzero((self.status != FREE) & (self.rows > since))
        slots = self.slots_of(fresh)
        episode, step = self.episode(slots), self.step(slots)
        return slots[step >= since[episode]]

    def books(self) -> dict[str, Any]:
        """Return the index without slots in use and stamps, and without the log, which follows from them.

        Free slots that were never taken are at the bottom of the stack, the last one first.
        """
        freed = torch.from_numpy(self._stack[self.size - self._high : self.vacant].copy())
        return super().books() | {"freed": freed, "high": self._high}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.start, self.limit = np.zeros_like(self.rows), np.zeros_like(self.rows)
        self._high = state["high"]
        freed, untaken = state["freed"].numpy(), self.size - self._high
        self.vacant = untaken + len(freed)
        used = self.used()
        self._stack = np.arange(self.size, dtype=np.int64)[::-1].copy()
        self._stack[untaken : self.vacant] = freed
        self._lay_out(used[np.argsort(self.stamp[used])], 0)

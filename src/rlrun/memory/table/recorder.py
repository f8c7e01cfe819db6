"""The writing part of a table: rows, episodes, and drops from a full table."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from rlrun.checkpointing.segments import SLOTS, Changes, Live, SegmentChain, StoredColumn, chain_of
from rlrun.core.errors import ConfigError, RlrunError, did_you_mean
from rlrun.core.spaces import flat, map_tree
from rlrun.core.typing import Array, Stateful, Tree
from rlrun.memory.table.columns import Column, Frames, Tags
from rlrun.memory.table.ejectors import Ejector
from rlrun.memory.table.index import CLOSED, EMPTY, EpisodeIndex, env_numbers
from rlrun.memory.table.pool import PoolIndex
from rlrun.memory.table.ring import RingIndex
from rlrun.memory.table.samplers import Rows, Sampler
from rlrun.memory.table.sparse import Sparse
from rlrun.memory.table.storage import Storage

STAMP = "stamps of slots"  # the column of the index; it differs from all names of the storage


class Recorder:
    """Writes rows to the slots of the index, and notifies sampler and ejector."""

    length: int
    grows = False  # True: a callback writes to it and calls `resize`, so a saved table may be larger

    def __init__(
        self,
        columns: Sequence[Column],
        *,
        length: int,
        num_envs: int,
        sampler: Sampler,
        ejector: Ejector,
        frame_stack: int,
        min_length: int,
        directory: Path | None,
    ) -> None:
        self.sampler = sampler
        self.ejector = ejector
        stored = [column for column in columns if not column.tag]
        self.frames = Frames(stored, frame_stack) if frame_stack > 1 else None
        options = {"num_envs": num_envs, "min_length": min_length, "margin": frame_stack - 1}
        self.index: EpisodeIndex
        try:
            if ejector.by_row:
                self.index = RingIndex(slots=length // num_envs + 1, **options)
            else:
                self.index = PoolIndex(size=length + num_envs, **options)
        except MemoryError:
            raise ConfigError(
                f"length: {length:,} transitions are too many for this machine; their index is always in main memory"
            ) from None
        few = [column for column in stored if column.every > 1 and ejector.by_row]  # not in unordered pools
        sparse = {column.name: Sparse(column, self.index, directory) for column in few}
        kept = self.frames.columns if self.frames else stored
        self.storage = Storage(kept, self.index.size, directory, sparse)
        self.tags = Tags([column for column in columns if column.tag], self.index)
        self._observers: Sequence[Callable[[Mapping[str, Tree]], None]] = ()
        self._pooled = isinstance(self.index, PoolIndex)
        self._chain: SegmentChain | None = None  # the segments in which the newest checkpoint keeps the rows
        self._on_add = sampler.on_add if type(sampler).on_add is not Sampler.on_add else None
        sampler.bind(self.index)
        ejector.bind(self.index)

    @property
    def num_envs(self) -> int:
        """Number of envs whose steps are stored."""
        return self.index.num_envs

    def add(self, env_index: int | Array | None, row: Mapping[str, Tree]) -> None:
        """Store one step of some envs.

        env_index: a number, an array of n numbers, or None for all envs.
        row: every column, [n, …].
        """
        if self._pooled:
            self._make_room(self.index.num_envs if env_index is None else np.size(env_index))
        slots = self.index.advance(env_index)
        self.storage.write(slots, self._framed(row))
        if self._on_add is not None:
            self._on_add(slots)
        if self._observers:
            self._show(row, env_numbers(env_index, self.index.num_envs))

    @property
    def observed(self) -> bool:
        """Return True if an adaptor learns from new rows."""
        return bool(self._observers)

    @contextmanager
    def unobserved(self) -> Iterator[None]:
        """Stop adaptors from learning from new rows within a `with` block."""
        observers, self._observers = self._observers, ()
        try:
            yield
        finally:
            self._observers = observers

    def _show(self, row: Mapping[str, Tree], env: Array) -> None:
        """Pass rows [n, …] with the numbers of their environments [n] to adaptors that learn from them."""
        for observe in self._observers:
            observe({**row, "env": env})

    def close(self, env_index: int | Array | None, last: Tree, tags: Mapping[str, Any] | None = None) -> None:
        """End the episodes of some envs.

        env_index: a number, numbers [n], a choice [N] of bools, or None for all envs.
        last: the observation after the last step, [n, …].
        tags: one value an episode, [n, …]; the table ignores unknown ones.
        """
        envs = env_numbers(env_index, self.index.num_envs)
        if self._pooled:
            self._make_room(len(envs))
        elif len(self.index.free) < len(envs):
            self._recycle(len(envs))
        self.tags.check(tags)
        slots, episodes = self.index.close(envs)
        self.storage.write_last(slots, self.frames.newest(last) if self.frames else last)
        if tags is not None:
            self.tags.put(episodes, tags)
        episode_end = episodes[episodes >= 0]
        self.sampler.track(episode_end)
        self.ejector.track(episode_end)

    def add_episode(self, row: Mapping[str, Tree], last: Tree, tags: Mapping[str, Any] | None = None) -> None:
        """Store a whole episode in the env that has taken the fewest rows.

        row: every column, [L, …]; last: the observation after the last row; tags: one value each.

        Raises:
            RlrunError: every env has an open episode.
        """
        index = self.index
        begun = index.written - index.first[index.open]
        env_index = int(np.argmin(np.where(begun == 0, index.written, np.iinfo(np.int64).max)))
        if begun[env_index]:
            raise RlrunError("memory: a whole episode has no place while every env has an open one")
        count = len(next(iter(flat(row).values())))
        piece = max(1, index.size // index.num_envs // 2)
        for begin in range(0, count, piece):
            part = _part(row, slice(begin, begin + piece))
            size = min(piece, count - begin)
            if self._pooled:
                self._make_room(size)
            slots = index.extend(env_index, size)
            self.storage.write(slots, self._framed(part))
            if self._on_add is not None:
                self._on_add(slots)
            self._show(part, np.full(size, env_index))
        values = {name: np.asarray(value)[None] for name, value in (tags or {}).items()}
        self.close(env_index, _part(last, None), values)

    def _framed(self, row: Mapping[str, Tree]) -> Mapping[str, Tree]:
        """Return a row with single frames in place of stacks, if each frame is stored once."""
        return {**row, "observation": self.frames.newest(row["observation"])} if self.frames else row

    def _make_room(self, count: int) -> None:
        """Drop episodes that the ejector picks until `count` slots are free."""
        index = self.index
        assert isinstance(index, PoolIndex)
        if index.vacant < count:
            self._forget(self.ejector.pick(count - index.vacant))
        if index.vacant < count:
            index.shorten(count - index.vacant)

    def _recycle(self, count: int) -> None:
        """Free the numbers of overwritten episodes."""
        index = self.index
        assert isinstance(index, RingIndex)
        self._forget(index.gone())
        if len(index.free) < max(count, len(index.lane) // 4):  # with few free numbers this search would be frequent
            index.grow()

    def _forget(self, episodes: Array) -> None:
        self.sampler.forget(episodes)
        self.ejector.forget(episodes)
        if len(self.tags):
            self.tags.clear(episodes)
        self.index.drop(episodes)

    def full(self) -> bool:
        """Return True if every new row replaces an old one."""
        return self.index.full()

    def clear(self) -> None:
        """Drop all rows."""
        self._forget(np.flatnonzero(self.index.status == CLOSED))
        for part in (self.sampler, self.ejector):
            part.forget(self.index.open)  # their numbers stay in use
        self.index.abandon()
        if isinstance(self.index, RingIndex):
            self.index.restart()

    def resize(self, length: int) -> None:
        """Grow to `length` transitions, all envs together, with the stored rows.

        Raises:
            ConfigError: the table has more already.
        """
        index = self.index
        ring = isinstance(index, RingIndex)
        size = (length // index.num_envs + 1) * index.num_envs if ring else length + index.num_envs
        if size < index.size:
            now = index.size - index.num_envs
            raise ConfigError(f"memory.length can only grow: it is {now:,}, and {length:,} is less")
        before = index.written.copy()
        old, new = index.resize(size)
        self.storage.resize(size, old, new)
        for part in self.storage.sparse.values():
            part.resize(before - index.written)
        self.sampler.moved(old, new)
        self.length = length

    def rewrite(self, rows: Rows, values: Mapping[str, Tree]) -> None:
        """Store new values of columns for the rows of an earlier sample: values [B, …] or [B, T, …], by name.

        Padding is left out, and so are rows that others have replaced since. Of a row that is there twice the last
        value counts. Samples that were drawn ahead are drawn again.

        Raises:
            RlrunError: a column cannot be rewritten, or its values have another shape.
        """
        columns = self.storage.columns.values()
        known = {column.name for column in columns if column.keys[0] != "observation" and column.every == 1}
        remain = rows.remain(rows.index)
        places = np.flatnonzero(remain if rows.valid is None else remain & rows.valid)
        slots = rows.index.ravel()[places]
        for name, value in flat(values).items():
            if name not in known:
                there = f"there are {', '.join(sorted(known))}{did_you_mean(name, known)}"
                raise RlrunError(f"memory: '{name}' cannot be rewritten; {there}")
            array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
            wanted = (*rows.index.shape, *self.storage.columns[name].shape)
            if array.shape != wanted:
                raise RlrunError(f"memory: rewrite of '{name}' has shape {[*array.shape]}, wanted {[*wanted]}")
            self.storage.put(name, slots, array.reshape(-1, *wanted[rows.index.ndim :])[places])
        self.index.version += 1

    def state_dict(self) -> dict[str, Any]:
        """Return rows, sampler and ejector, without slots never written; rows of a full table are not copied."""
        return self._state(self.storage.state_dict(self.index.used()), self.index.state_dict())

    def _state(self, columns: dict[str, Any], index: dict[str, Any]) -> dict[str, Any]:
        parts: dict[str, Stateful] = {"tags": self.tags, "sampler": self.sampler, "ejector": self.ejector}
        return {"columns": columns, "index": index, **{name: part.state_dict() for name, part in parts.items()}}

    def checkpoint(self, home: Path) -> dict[str, Any]:
        """Return the state for a checkpoint, with the rows that changed since the one before.

        home: the folder of segments that checkpoints share; a new folder gets all rows.
        """
        used = self.index.stamp != EMPTY
        if self._chain is None or not self._chain.fits(home, len(used)):
            self._chain = SegmentChain(home, len(used))
        if len(self._chain):
            slots, touched = self.index.changed(), np.flatnonzero(self.storage.changed & used)
            slots = np.union1d(slots, touched) if len(touched) else slots
        else:
            slots = np.flatnonzero(used)
        live = Live(slots, {**self.storage.blocks, STAMP: self.index.stamp})
        self._chain.pending = True
        self.index.settle()
        self.storage.changed[:] = False
        columns = Changes(used, live, self._chain).columns()
        index = {**self.index.books(), "used": columns[SLOTS], "stamp": columns[STAMP]}
        return self._state(self.storage.state_dict(slots, columns), index)

    def require_alike(self, state: Mapping[str, Any]) -> None:
        """Refuse the state of a table of another size or kind, or of other columns or tags.

        Raises:
            RlrunError: names both.
        """
        missing = {*self.index.saved, "used"} - state["index"].keys() or set(self.tags) ^ state["tags"].keys()
        if missing:
            raise RlrunError(
                f"memory: the saved table is of another kind or has other tags: {', '.join(sorted(missing))}"
            )
        self.storage.check_state(state["columns"])
        if not self._would_grow(state):
            self.index.require_size(state["index"])

    def _would_grow(self, state: Mapping[str, Any]) -> bool:
        """Return True if the saved table is larger, and this one grows by itself."""
        return self.grows and state["index"].get("size", 0) > self.index.size

    def forked(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return another run's state for a fork, with this new run's random numbers and counters."""
        strategies = {"sampler": self.sampler, "ejector": self.ejector}
        return {**state, **{name: strategy.forked(state[name]) for name, strategy in strategies.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the result of `state_dict` or `checkpoint`, of a table with this size and these columns.

        Raises:
            RlrunError: size or columns differ, a choice does not exist, or the state is damaged.
        """
        if self._would_grow(state):
            self.resize(state["index"]["size"] - self.index.num_envs)
        self.require_alike(state)
        self.index.load_state_dict(state["index"])
        used = self.index.used()
        self.storage.load_state_dict(state["columns"], used)
        self.tags.load_state_dict(state["tags"])
        self._chain = None
        stamp = state["index"]["stamp"]
        if isinstance(stamp, StoredColumn):
            self._chain = chain_of(stamp.rows)
            self.index.settle()
        self.sampler.load_state_dict(state["sampler"])
        self.ejector.load_state_dict(state["ejector"])


def _part(tree: Any, rows: Any) -> Any:
    """Return some rows of a tree of arrays; None: each leaf with a new first dimension."""
    return map_tree(lambda leaf: leaf if leaf is None else np.asarray(leaf)[rows], tree)

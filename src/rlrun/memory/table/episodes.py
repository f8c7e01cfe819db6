"""Whole episodes: read from a table, converted to its columns, and added to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlrun.core.errors import RequestError, did_you_mean
from rlrun.core.spaces import flat, nest, row_count
from rlrun.core.typing import Array, Tree
from rlrun.memory.table.columns import Column
from rlrun.memory.table.index import grown, runs
from rlrun.memory.table.recorder import Recorder

PIECE = 1 << 14  # rows gathered at a time
FLAGS = ("terminated", "truncated")
INTERRUPTED = "interrupted"  # a tag that collectors set where an episode was cut off


@dataclass
class Episode:
    """The rows of one episode, oldest first, and the observation after the last of them."""

    row: dict[str, Tree]  # [L, …]
    last: Tree = None  # […]
    tags: dict[str, Any] = field(default_factory=dict)  # one value an episode

    @classmethod
    def of(cls, stored: Mapping[str, Array], is_open: bool, tags: dict[str, Any]) -> Episode:
        """Return the episode of columns [L + 1, …] by dotted name; an open one counts as cut off."""
        row = {name: leaf[:-1] for name, leaf in stored.items()}
        if is_open and "truncated" in row:
            row["truncated"] = row["truncated"].copy()
            row["truncated"][-1] = True
        last = {name: leaf[-1] for name, leaf in stored.items() if name.split(".")[0] == "observation"}
        return cls(nest(row), nest(last).get("observation"), tags)

    def __len__(self) -> int:
        return row_count(self.row)


def fit(table: Recorder, episode: Episode, source: str) -> Episode:
    """Return an episode in the names, shapes and types of a table's columns.

    A Dict observation of one part fits a single observation, and [1] fits a single number. `terminated` and
    `truncated` are left out where the table does not have them.

    Raises:
        RequestError: a column is missing or cannot be converted, or there is one too many.
    """
    columns = table.storage.columns
    leaves, last = flat(episode.row), flat(episode.last, "observation") if episode.last is not None else {}
    parts = [name for name in leaves if name.startswith("observation.")]
    if "observation" in columns and len(parts) == 1:
        leaves["observation"], last = leaves.pop(parts[0]), {"observation": last[parts[0]]} if last else {}
    for name in FLAGS:
        if name not in columns:
            leaves.pop(name, None)
    for name in columns:
        if name not in leaves:
            raise RequestError(
                f"{source} has no column '{name}', which the memory stores; it has {', '.join(leaves)}"
                f"{did_you_mean(name, leaves)}"
            )
    for name in leaves:
        if name not in columns:
            raise RequestError(
                f"{source} has the column '{name}', which the memory does not store; the memory has "
                f"{', '.join(columns)}{did_you_mean(name, columns)}"
            )
    row = {name: _convert(table, leaves[name], column, source) for name, column in columns.items()}
    ends = {
        name: _convert(table, leaf[None], columns[name], source)[0] for name, leaf in last.items() if name in columns
    }
    tags = {}
    for name in table.tags:
        if name not in episode.tags:
            raise RequestError(f"{source} has no tag '{name}', which the memory stores")
        tags[name] = episode.tags[name]
    return Episode(nest(row), nest(ends).get("observation"), tags)


def _convert(table: Recorder, values: Array, column: Column, source: str) -> Array:
    frames = table.frames
    stack = frames.stacks.get(column.name) if frames is not None else None
    if frames is not None and stack is not None and values.ndim - 1 == len(column.shape) + (not stack.joined):
        values = frames.newest(values, column.name)  # the table stores single frames
    shape, wanted = values.shape[1:], tuple(column.shape)
    if shape != wanted:
        if [size for size in shape if size != 1] != [size for size in wanted if size != 1]:
            raise RequestError(
                f"{source} has column '{column.name}' of shape {list(shape)}; the memory has {list(wanted)}"
            )
        values = values.reshape(len(values), *wanted)
    choices = (
        column.name.partition(".")[0] == "action" and values.dtype.kind in "biu" and np.dtype(column.dtype).kind == "f"
    )
    if choices or (values.dtype != column.dtype and not np.can_cast(values.dtype, column.dtype, "same_kind")):
        raise RequestError(
            f"{source} has column '{column.name}' of type {values.dtype.name}; the memory has {column.dtype}"
        )
    column.require_choices(values, source)
    return values


def add_all(table: Recorder, episodes: Iterable[Episode], *, append: bool) -> None:
    """Add episodes that fit; without `append`, clear the table first."""
    if not append:
        table.clear()
    for episode in episodes:
        table.add_episode(episode.row, episode.last, episode.tags)


def newest(episodes: Iterable[Episode], limit: int | None, source: str) -> Iterable[Episode]:
    """Return the newest episodes that have at most `limit` rows together; None = all, lazily.

    Raises:
        RequestError: the newest episode alone has more.
    """
    if limit is None:
        return episodes
    kept: deque[Episode] = deque()
    rows = last = 0
    for episode in episodes:
        kept.append(episode)
        last = len(episode)
        rows += last
        while rows > limit:
            rows -= len(kept.popleft())
    if last and not kept:
        raise RequestError(f"{source}: the newest episode has {last:,} transitions; a limit of {limit:,} takes none")
    return kept


def cut_off(table: Recorder) -> None:
    """End every open episode of a table as truncated.

    The newest observation of each becomes its last one. The action there is dropped, because it has no outcome.
    """
    index = table.index
    newest = index.newest()[index.open]
    envs = np.flatnonzero(newest > 0)
    episodes, slots = index.open[envs], index.at(index.open[envs], newest[envs])
    if "truncated" in table.storage.columns:
        table.storage.put("truncated", index.at(episodes, newest[envs] - 1), True)
    episode_end = index.end(envs, slots)
    index.abandon()  # rows without any outcome
    episode_end = episode_end[episode_end >= 0]
    if INTERRUPTED in table.tags:
        tags = {name: np.zeros((len(episode_end), *column.shape)) for name, column in table.tags.columns.items()}
        table.tags.put(episode_end, {**tags, INTERRUPTED: np.ones(len(episode_end))})
    table.sampler.track(episode_end)
    table.ejector.track(episode_end)


@dataclass
class Stored:
    """The episodes of a table, the most recently written one last.

    An episode of L rows takes L + 1 slots. An open episode ends with its newest observation, without the action there,
    which has no outcome yet.
    """

    table: Recorder
    slots: Array  # of all episodes, one after another
    length: Array  # [E] slots of each
    number: Array  # [E] in the index
    open: Array  # [E]

    @classmethod
    def of(cls, table: Recorder, *, partial: bool = False) -> Stored:
        """Return the episodes of a table; partial: also those too short to be sampled, or without a transition."""
        index = table.index
        slots = index.used()
        slots = slots[np.argsort(index.stamp[slots], kind="stable")]
        begin = np.flatnonzero(np.diff(index.episode(slots), prepend=-1))
        length = np.diff(begin, append=len(slots))
        order = np.argsort(-index.age(slots[begin + length - 1]), kind="stable")
        number = index.episode(slots[begin])
        if not partial:
            order = order[(length > 1)[order] & index.alive()[number[order]]]
        begin, length = begin[order], length[order]
        is_open = ~index.closed()[number[order]]
        return cls(table, slots[runs(begin, length)], length, number[order], is_open)

    @property
    def columns(self) -> Mapping[str, Column]:
        return self.table.storage.columns

    @property
    def rows(self) -> Array:
        """Transitions of each episode, [E]."""
        return self.length - 1

    def __len__(self) -> int:
        return len(self.length)

    def row_slots(self) -> Array:
        """Return the slots without those of the last observations."""
        return np.delete(self.slots, self._last())

    def _last(self) -> Array:
        """Return the positions of last observations among the slots, [E]."""
        return np.cumsum(self.length) - 1

    def cut_off(self) -> Array:
        """Return flags [E] of the episodes that did not terminate."""
        last = self.slots[self._last() - 1]
        flags = {name: self.leaf(name, last) for name in ("terminated", "truncated") if name in self.columns}
        episode_end = flags.get("terminated", np.zeros(len(self), np.bool_))
        return ~episode_end & (self.open | flags.get("truncated", np.zeros(len(self), np.bool_)))

    def leaf(self, name: str, slots: Array, *, frames: bool = False) -> Array:
        """Return a column at the slots as an array; frames: only the newest frame of stacked observations."""
        stacks = self.table.frames
        if stacks is not None and not frames and name in stacks.stacks:
            return np.asarray(stacks.read(self.table.index, self.table.storage.gather, name, slots))
        values: Array = self.table.storage.arrays[name][slots]
        return values

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one value of a column."""
        return tuple(self.leaf(name, self.slots[:0]).shape[1:])

    def pieces(self, name: str, *, rows: bool = False, frames: bool = False) -> Iterator[Array]:
        """Yield a column at all slots, some at a time; rows: without those of the last observations."""
        slots = self.row_slots() if rows else self.slots
        for start in range(0, len(slots), PIECE):
            yield self.leaf(name, slots[start : start + PIECE], frames=frames)

    def __iter__(self) -> Iterator[Episode]:
        begin = 0
        for number, length in enumerate(self.length.tolist()):
            slots = self.slots[begin : begin + length]
            row = {name: self.leaf(name, slots) for name in self.columns}
            begin += length
            tags = {name: values[number] for name, values in self.tags.items()}
            yield Episode.of(row, bool(self.open[number]), tags)

    @property
    def tags(self) -> dict[str, Array]:
        """Return the tags by name: [E, …]; zeros for open episodes."""
        known, count = self.table.tags.values, len(self.table.index.lane)
        tags = {name: grown(values, count)[self.number] for name, values in known.items()}
        if INTERRUPTED in tags:
            tags[INTERRUPTED][self.open] = 1
        return tags

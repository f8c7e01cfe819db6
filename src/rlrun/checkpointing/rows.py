"""Rows of a memory on their way to and from disk: which slots hold any, and where their content is found.

A state holds them as columns. A column stands for a tensor [n, …], the rows of all slots in use. It is read into
main memory as a whole only on request.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from rlrun.core.errors import RlrunError
from rlrun.core.typing import Array

PIECE = 1 << 24  # bytes that are gathered at a time
SLOTS = ""  # the column of the slots' numbers

Kinds = Mapping[str, tuple[np.dtype, tuple[int, ...]]]


class RowSource(Protocol):
    """Some rows: those of `slots`, which ascend."""

    slots: Array

    def read(self, name: str, begin: int, end: int) -> Array:
        """Return a column of the slots from number `begin` to `end`."""


class StoredRows:
    """The rows of a table at some moment.

    Args:
        used: [size] whether a slot holds a row.
        kinds: dtype and shape of a row, by column.
        sources: of later ones the rows count.
        home: the folder in which the sources are files; None where they are not.
    """

    def __init__(self, used: Array, kinds: Kinds, sources: Sequence[RowSource], home: Path | None = None) -> None:
        self.used = used
        self.kinds = kinds
        self.sources = sources
        self.home = home
        self.count = int(np.count_nonzero(used))

    @cached_property
    def slots(self) -> Array:
        """The slots in use, ascending."""
        return np.flatnonzero(self.used)

    def columns(self) -> dict[str, StoredColumn]:
        """Return all columns by name, the slots' numbers included."""
        return {name: StoredColumn(self, name) for name in (*self.kinds, SLOTS)}

    @property
    def row_bytes(self) -> int:
        return sum(math.prod(shape) * dtype.itemsize for dtype, shape in self.kinds.values())


class Live:
    """Rows in main memory: blocks of all slots, or copies of some rows of them."""

    def __init__(self, slots: Array, blocks: Mapping[str, Array]) -> None:
        self.slots = slots
        self.blocks = blocks
        self._copied = False

    def read(self, name: str, begin: int, end: int) -> Array:
        if self._copied:
            return self.blocks[name][begin:end]
        return _take(self.blocks[name], self.slots[begin:end])

    def copy(self) -> None:
        """Copy the rows, so that later changes of the blocks do not matter."""
        if not self._copied:
            self.blocks = {name: np.array(_take(block, self.slots)) for name, block in self.blocks.items()}
            self._copied = True


def _take(block: Array, slots: Array) -> Array:
    """Return some rows of a block; a view where they are neighbors."""
    if len(slots) and slots[-1] - slots[0] == len(slots) - 1:
        return block[slots[0] : slots[-1] + 1]
    return block.take(slots, axis=0)


class Changes(StoredRows):
    """The rows of a table as a checkpoint takes them: those that changed since the one before.

    Args:
        used: [size] whether a slot holds a row.
        live: the rows that changed.
        chain: the segments that have all others; they are brought up to date when this is written.
    """

    def __init__(self, used: Array, live: Live, chain: SegmentChain) -> None:
        kinds = {name: (block.dtype, block.shape[1:]) for name, block in live.blocks.items()}
        super().__init__(used, kinds, (live,), chain.home)
        self.live = live
        self.chain = chain

    @property
    def nbytes(self) -> int:
        """Bytes of the rows that changed."""
        return len(self.live.slots) * self.row_bytes


class SegmentLink(NamedTuple):
    """A segment in a chain."""

    number: int
    name: str
    size: int
    rows: int


class SegmentChain:
    """The segments that together hold the rows of a table, oldest first, and which of them holds each slot's row.

    Args:
        home: the folder of the segments.
        size: slots of the table.
    """

    def __init__(self, home: Path, size: int) -> None:
        self.home = home
        self.owner: Array = np.full(size, -1, np.int32)  # number of a link
        self.links: list[SegmentLink] = []
        self.next = 0
        self.pending = False  # what changed was taken, and is not known to be on disk

    def __len__(self) -> int:
        return len(self.links)

    def fits(self, home: Path, size: int) -> bool:
        """Return True if this chain holds all rows that did not change."""
        return not self.pending and self.home == home and len(self.owner) == size

    def add(self, name: str, size: int, slots: Array) -> None:
        """Append a segment that holds rows of these slots."""
        self.owner[slots] = self.next
        self.links.append(SegmentLink(self.next, name, size, len(slots)))
        self.next += 1


class StoredColumn:
    """A tensor [n, …] of which no more than a piece is in main memory."""

    def __init__(self, rows: StoredRows, name: str) -> None:
        self.rows = rows
        self.name = name
        kind, inner = (np.dtype(np.int64), ()) if name == SLOTS else rows.kinds[name]
        self.kind = kind
        self.shape = (rows.count, *inner)
        self.dtype = torch.from_numpy(np.empty(0, kind)).dtype

    def pieces(self) -> Iterator[Array]:
        """Yield the rows, in the order of their slots.

        Raises:
            RlrunError: they are on their way to disk, and only those that changed are at hand.
        """
        if isinstance(self.rows, Changes):
            raise RlrunError(
                "rows that a checkpoint takes from a memory can be written only; state_dict() has all of them"
            )
        if self.name == SLOTS:
            yield self.rows.slots
        else:
            yield from gather(self.rows.sources, self.name, self.rows.slots, self.kind, self.shape[1:])

    def numpy(self) -> Array:
        """Return the whole as an array."""
        array = np.empty(self.shape, self.kind)
        begin = 0
        for piece in self.pieces():
            array[begin : begin + len(piece)] = piece
            begin += len(piece)
        return array

    def tensor(self) -> Tensor:
        """Return the whole as a tensor."""
        return torch.from_numpy(self.numpy())

    def __len__(self) -> int:
        return self.shape[0]


def gather(
    sources: Sequence[RowSource], name: str, slots: Array, kind: np.dtype, shape: tuple[int, ...]
) -> Iterator[Array]:
    """Yield a column's rows at slots, which ascend, some at a time; of several sources the last one counts."""
    step = max(1, PIECE // max(1, math.prod(shape) * kind.itemsize))
    whole = len(sources) == 1 and np.array_equal(sources[0].slots, slots)
    for begin in range(0, len(slots), step):
        wanted = slots[begin : begin + step]
        if whole:
            yield sources[0].read(name, begin, begin + len(wanted))
            continue
        rows = np.empty((len(wanted), *shape), kind)
        for source in sources:
            first, last = np.searchsorted(source.slots, (wanted[0], wanted[-1] + 1)).tolist()
            if first < last:
                source_slots = source.slots[first:last]
                place = np.searchsorted(wanted, source_slots)
                same = wanted[np.minimum(place, len(wanted) - 1)] == source_slots
                rows[place[same]] = source.read(name, first, last)[same]
        yield rows


def home_of(checkpoints: Path) -> Path:
    """Return the folder of the segments of a folder of checkpoints, by its one true name."""
    return Path(os.path.realpath(checkpoints)) / "segments"

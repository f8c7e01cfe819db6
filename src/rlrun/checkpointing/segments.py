"""Segments: immutable files with rows of memories, shared by checkpoints.

Each checkpoint adds one segment with the changed rows. A table's content is a chain of segments: for a slot in several
of them the last one counts. A segment without a row that counts leaves the chain. When the chain becomes long, or has
more dead than live rows, some segments are merged into the new one.

    slots               [n] ascending
    rows/<column>       [n, …]

The name of a segment is the hash of its bytes. A state holds rows as columns. A column stands for a tensor [n, …] of
the rows of all slots in use. It is read into main memory as a whole only on request.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlrun.checkpointing import tensorfiles
from rlrun.checkpointing.manifest import CheckpointManifest
from rlrun.checkpointing.tensorfiles import CODES, StoredTensor, TensorFile, bits
from rlrun.core.errors import RlrunError, RunDirError
from rlrun.core.files import sync_directory
from rlrun.core.typing import Array

LONGEST = 64  # segments of a chain
PIECE = 1 << 24  # bytes gathered at a time
SLOTS = ""  # the column of the slots' numbers

Kinds = Mapping[str, tuple[np.dtype, tuple[int, ...]]]


class StoredRows:
    """The rows of a table at some moment.

    Args:
        used: [size] flags of the slots with a row.
        kinds: dtype and shape of a row, by column.
        sources: of the rows; later ones override earlier ones.
        home: the folder of segments.
    """

    def __init__(self, used: Array, kinds: Kinds, sources: Sequence[RowSource], home: Path) -> None:
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


class Live:
    """Rows in main memory: blocks of all slots, or copies of some rows of them."""

    def __init__(self, slots: Array, blocks: Mapping[str, Array]) -> None:
        self.slots = slots
        self.blocks = blocks
        self._copied = False

    def read(self, name: str, begin: int, end: int) -> Array:
        block, slots = self.blocks[name], self.slots[begin:end]
        if self._copied:
            return block[begin:end]
        if len(slots) and slots[-1] - slots[0] == len(slots) - 1:  # neighbors: no copy
            return block[slots[0] : slots[-1] + 1]
        return block.take(slots, axis=0)

    def copy(self) -> None:
        """Copy the rows, so that the blocks may change."""
        self.blocks = {name: np.array(self.read(name, 0, len(self.slots))) for name in self.blocks}
        self._copied = True


class Changes(StoredRows):
    """The rows of a table for a checkpoint: those that changed since the last one, and the segments of all others.

    Args:
        used: [size] flags of the slots with a row.
        live: the changed rows.
        chain: the segments with all other rows; writing updates it.
    """

    def __init__(self, used: Array, live: Live, chain: SegmentChain) -> None:
        kinds = {name: (block.dtype, block.shape[1:]) for name, block in live.blocks.items()}
        super().__init__(used, kinds, (live,), chain.home)
        self.live = live
        self.chain = chain

    @property
    def nbytes(self) -> int:
        """Bytes of the rows that changed."""
        return len(self.live.slots) * sum(math.prod(shape) * dtype.itemsize for dtype, shape in self.kinds.values())


class SegmentLink(NamedTuple):
    """A segment in a chain."""

    number: int
    name: str
    size: int
    rows: int

    @property
    def entry(self) -> dict[str, Any]:
        """Its size and hash, as in a manifest."""
        return {"size": self.size, "sha256": self.name.partition(".")[0]}


class SegmentChain:
    """The segments with the rows of a table, oldest first, and the segment of each slot.

    Args:
        home: the folder of the segments.
        size: slots of the table.
    """

    def __init__(self, home: Path, size: int) -> None:
        self.home = home
        self.owner: Array = np.full(size, -1, np.int32)  # number of a link
        self.links: list[SegmentLink] = []
        self.next = 0
        self.pending = False  # True while changed rows may not be on disk yet

    def __len__(self) -> int:
        return len(self.links)

    def fits(self, home: Path, size: int) -> bool:
        """Return True if this chain holds all unchanged rows."""
        return not self.pending and self.home == home and len(self.owner) == size

    def add(self, name: str, size: int, slots: Array) -> None:
        """Append a segment that holds rows of these slots."""
        self.owner[slots] = self.next
        self.links.append(SegmentLink(self.next, name, size, len(slots)))
        self.next += 1


class StoredColumn:
    """A tensor [n, …] that is read piece by piece."""

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
            RlrunError: the rows are a checkpoint's changes, which can only be written.
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
    """Return the folder of the segments of a folder of checkpoints, as its real path."""
    return Path(os.path.realpath(checkpoints)) / "segments"


class Segment:
    """A segment on disk, verified by its hash; it can be read even after it was deleted.

    Args:
        path: the file.
        entry: its size and hash.
        kinds: of its rows.

    Raises:
        RunDirError: it cannot be read, or is damaged.
    """

    def __init__(self, path: Path, entry: Mapping[str, Any], kinds: Kinds) -> None:
        self.name = path.name
        self.size = int(entry["size"])
        self._kinds = kinds
        self._file = TensorFile(path, entry)
        self._file.verify()
        code, shape = self._file.tensors["slots"][:2]
        slots = self._file.read("slots", 0, shape[0]).view(np.int32 if code == "I32" else np.int64)
        self.slots: Array = slots.astype(np.int64)

    def read(self, name: str, begin: int, end: int) -> Array:
        kind, shape = self._kinds[name]
        return self._file.read(f"rows/{name}", begin, end).view(kind).reshape(end - begin, *shape)


RowSource = Live | Segment  # rows of ascending `slots`; `read` returns a range of them


def _described(count: int, kind: np.dtype, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """Return dtype and shape of a column in the header: bytes, if the format lacks its dtype."""
    with contextlib.suppress(TypeError):
        code = CODES.get(torch.from_numpy(np.empty(0, kind)).dtype)
        if code is not None:
            return code, (count, *shape)
    return "U8", (count, math.prod(shape) * kind.itemsize)


def write(rows: StoredRows, home: Path) -> SegmentChain:
    """Write the rows that are not on disk yet; return the chain with all rows.

    Raises:
        OSError: the disk does not take them.
        RunDirError: an earlier segment is gone or damaged; from now on all rows count as changed.
    """
    if isinstance(rows, Changes):
        chain, fresh = rows.chain, rows.live.slots
        if chain.home != home:
            raise ValueError(f"these rows were taken for {chain.home}, not for {home}")
    elif rows.home == home:
        return chain_of(rows)
    else:
        chain, fresh = SegmentChain(home, len(rows.used)), rows.slots
    chain.pending = True
    number = chain.next
    chain.owner[~rows.used] = -1
    chain.owner[fresh] = number
    alive = np.bincount(chain.owner[rows.slots], minlength=number + 1)
    links = [link for link in chain.links if alive[link.number]]
    for link in links:
        path = chain.home / link.name
        if not path.is_file() or path.stat().st_size != link.size:
            raise RunDirError(f"{path} is damaged: it is gone, or has another size than when it was written")
    merged = _to_merge(links, alive)
    if merged:
        taken = np.zeros(number + 1, np.bool_)
        taken[[*(link.number for link in merged), number]] = True
        fresh = rows.slots[taken[chain.owner[rows.slots]]]
    sources: list[RowSource] = [Segment(chain.home / link.name, link.entry, rows.kinds) for link in merged]
    chain.links = [link for link in links if link not in merged]
    if len(fresh):
        name, size = _put(chain.home, [*sources, *rows.sources], fresh, rows)
        chain.add(name, size, fresh)
    chain.pending = False
    return chain


def _to_merge(links: Sequence[SegmentLink], alive: Array) -> list[SegmentLink]:
    """Return the segments to merge, oldest first; alive: rows that count, by number of the segment."""
    merged: set[int] = set()
    if len(links) >= LONGEST:
        smallest = sorted(links, key=lambda link: int(alive[link.number]))
        merged |= {link.number for link in smallest[: len(links) - LONGEST // 2]}
    dead = sum(link.rows - int(alive[link.number]) for link in links if link.number not in merged)
    if dead > int(alive.sum()):
        for link in sorted(links, key=lambda link: alive[link.number] / link.rows):
            if 2 * dead > int(alive.sum()) and link.number not in merged:
                merged.add(link.number)
                dead -= link.rows - int(alive[link.number])
    return [link for link in links if link.number in merged]


def _put(home: Path, sources: Sequence[RowSource], slots: Array, rows: StoredRows) -> tuple[str, int]:
    """Write a segment and return its name and size."""
    number = slots.astype(np.int32 if len(rows.used) < 1 << 31 else np.int64)
    items = {"slots": tensorfiles.item(torch.from_numpy(number))}
    for name, (kind, shape) in rows.kinds.items():
        pieces = partial(gather, sources, name, slots, kind, shape)
        items[f"rows/{name}"] = StoredTensor(*_described(len(slots), kind, shape), pieces)
    if not home.is_dir():
        home.mkdir(parents=True, exist_ok=True)
        sync_directory(home.parent)
    temporary = home / f".{os.getpid()}-{threading.get_ident()}.tmp"
    try:
        entry = tensorfiles.write(temporary, items)
        name = f"{entry['sha256']}.safetensors"
        os.replace(temporary, home / name)
        sync_directory(home)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    return name, entry["size"]


def chain_of(rows: StoredRows) -> SegmentChain:
    """Return the chain of rows that were read from a checkpoint."""
    chain = SegmentChain(rows.home, len(rows.used))
    for source in rows.sources:
        assert isinstance(source, Segment)
        chain.add(source.name, source.size, source.slots)
    chain.owner[~rows.used] = -1
    return chain


def open_rows(
    directory: Path, note: CheckpointManifest, rows: Any, tensors: Mapping[str, Tensor], wanted: Iterable[str]
) -> list[dict[str, StoredColumn] | None]:
    """Open the rows of memories; unwanted parts have None.

    Raises:
        RunDirError: a segment is missing or damaged.
    """
    home, wanted = home_of(directory.parent), set(wanted)
    columns: list[dict[str, StoredColumn] | None] = []
    for entry in rows:
        if entry["part"] not in wanted:
            columns.append(None)
            continue
        used = bits(tensors[entry["used"]].numpy(), entry["size"])
        kinds = {name: (np.dtype(dtype), tuple(shape)) for name, (dtype, shape) in entry["blocks"].items()}
        sources = [Segment(home / name, note.segments[name], kinds) for name in entry["segments"]]
        columns.append(StoredRows(used, kinds, sources, home).columns())
    return columns

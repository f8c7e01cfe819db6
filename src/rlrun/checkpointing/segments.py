"""Rows of memories on disk: segments, files that never change and that checkpoints share.

Each checkpoint adds one segment with the rows that changed. What a table holds is a chain of them: of a slot that
is in several the last one counts. A segment without a row that counts leaves the chain; when the chain becomes
long, or more of it is dead than alive, some segments are merged into the one that is written.

    slots               [n] ascending
    rows/<column>       [n, …]

The name of a segment is the hash of its bytes.
"""

import contextlib
import math
import os
import stat
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.checkpointing import tensorfiles
from rlrun.checkpointing.encoding import DTYPE, bits
from rlrun.checkpointing.rows import (
    Changes,
    Kinds,
    RowSource,
    SegmentChain,
    SegmentLink,
    StoredColumn,
    StoredRows,
    gather,
    home_of,
)
from rlrun.checkpointing.tensorfiles import CODES, StoredTensor, TensorFile
from rlrun.core.errors import RunDirError
from rlrun.core.typing import Array
from rlrun.runs.checkpoint_manifest import CheckpointManifest, is_count
from rlrun.runs.files import sync_directory

LONGEST = 64  # segments of a chain


class Segment:
    """A segment on disk, compared with its hash; it can be read even after it was deleted.

    Args:
        path: the file.
        entry: its size and hash.
        kinds: what its rows have to be.
        size: slots of the table.

    Raises:
        RunDirError: it cannot be read, is damaged, or holds something else.
    """

    def __init__(self, path: Path, entry: Mapping[str, Any], kinds: Kinds, size: int) -> None:
        self.name = path.name
        self.size = int(entry["size"])
        self._kinds = kinds
        self._file = TensorFile(path, entry)
        self._file.verify()
        wanted = {"slots", *(f"rows/{name}" for name in kinds)}
        tensors = self._file.tensors
        code, shape = tensors.get("slots", ("", ()))[:2]
        if tensors.keys() != wanted or len(shape) != 1 or code not in ("I32", "I64"):
            raise RunDirError(f"{path} is damaged: it holds {', '.join(sorted(tensors))[:200]!r}")
        for name, kind in kinds.items():
            if tensors[f"rows/{name}"][:2] != _described(shape[0], *kind):
                raise RunDirError(f"{path} is damaged: its column {name!r} is not as the checkpoint says")
        slots = self._file.read("slots", 0, shape[0]).view(np.int32 if code == "I32" else np.int64)
        self.slots: Array = slots.astype(np.int64)
        if len(slots) and (self.slots[0] < 0 or self.slots[-1] >= size or (np.diff(self.slots) <= 0).any()):
            raise RunDirError(f"{path} is damaged: its slots are not slots of the table, in order")

    def read(self, name: str, begin: int, end: int) -> Array:
        kind, shape = self._kinds[name]
        return self._file.read(f"rows/{name}", begin, end).view(kind).reshape(end - begin, *shape)


def _described(count: int, kind: np.dtype, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """Return a column's entry in the header: bytes, if the format lacks its dtype."""
    with contextlib.suppress(TypeError):
        code = CODES.get(torch.from_numpy(np.empty(0, kind)).dtype)
        if code is not None:
            return code, (count, *shape)
    return "U8", (count, math.prod(shape) * kind.itemsize)


def write(rows: StoredRows, home: Path) -> SegmentChain:
    """Bring rows to disk, those that are not there yet, and return the chain that holds all of them now.

    Raises:
        OSError: the disk does not take them.
        RunDirError: a segment of before is gone or damaged; from now on all rows count as changed.
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
    _write(chain, rows, fresh)
    chain.pending = False
    return chain


def _write(chain: SegmentChain, rows: StoredRows, fresh: Array) -> None:
    number = chain.next
    chain.owner[~rows.used] = -1
    chain.owner[fresh] = number
    alive = np.bincount(chain.owner[rows.slots], minlength=number + 1)
    links = [link for link in chain.links if alive[link.number]]
    for link in links:
        path = chain.home / link.name
        if not path.is_file() or path.stat().st_size != link.size:
            raise RunDirError(f"{path} is damaged: it is gone, or has another size than when it was written")
    merged = _worn(links, alive, len(fresh))
    if merged:
        taken = np.zeros(number + 1, np.bool_)
        taken[[*(link.number for link in merged), number]] = True
        fresh = rows.slots[taken[chain.owner[rows.slots]]]
    sources: list[RowSource] = [_open(chain.home, link, rows) for link in merged]
    chain.links = [link for link in links if link not in merged]
    if len(fresh):
        name, size = _put(chain.home, [*sources, *rows.sources], fresh, rows)
        chain.add(name, size, fresh)


def _worn(links: Sequence[SegmentLink], alive: Array, fresh: int) -> list[SegmentLink]:
    """Return which segments are to be merged, oldest first."""
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


def _open(home: Path, link: SegmentLink, rows: StoredRows) -> Segment:
    entry = {"size": link.size, "sha256": link.name.partition(".")[0]}
    return Segment(home / link.name, entry, rows.kinds, len(rows.used))


def _put(home: Path, sources: Sequence[RowSource], slots: Array, rows: StoredRows) -> tuple[str, int]:
    """Write a segment and return its name and size."""
    number = slots.astype(np.int32 if len(rows.used) < 1 << 31 else np.int64)
    items = {"slots": tensorfiles.item(torch.from_numpy(number))}
    for name, (kind, shape) in rows.kinds.items():
        pieces = partial(_pieces, sources, name, slots, kind, shape)
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


def _pieces(sources: Sequence[RowSource], name: str, slots: Array, kind: np.dtype, shape: Any) -> Iterator[Any]:
    """Yield a column's bytes, piece by piece."""
    for piece in gather(sources, name, slots, kind, shape):
        yield np.ascontiguousarray(piece).reshape(-1).view(np.uint8)


def chain_of(rows: StoredRows) -> SegmentChain:
    """Return the chain of rows that were read from a checkpoint."""
    assert rows.home is not None
    chain = SegmentChain(rows.home, len(rows.used))
    for source in rows.sources:
        assert isinstance(source, Segment)
        chain.add(source.name, source.size, source.slots)
    chain.owner[~rows.used] = -1
    return chain


def require_folder(home: Path) -> None:
    """Refuse a link to somewhere else in place of the folder of the segments.

    Raises:
        RunDirError: it is one.
    """
    if home.is_symlink() or (home.exists() and not stat.S_ISDIR(home.stat().st_mode)):
        raise RunDirError(f"{home} is no folder")


def open_rows(
    directory: Path, note: CheckpointManifest, rows: Any, tensors: Mapping[str, Tensor], wanted: Iterable[str]
) -> list[dict[str, StoredColumn] | None]:
    """Open the rows of memories; those of parts that are not wanted are None.

    Raises:
        RunDirError: a segment is missing, damaged, or does not fit.
        KeyError, TypeError, ValueError: what is said of the rows is wrong.
    """
    home, columns = home_of(directory.parent), []
    wanted = set(wanted)
    for entry in rows:
        columns.append(_open_rows(home, note, entry, tensors).columns() if entry["part"] in wanted else None)
    return columns


def _open_rows(
    home: Path, note: CheckpointManifest, entry: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> StoredRows:
    size, packed = entry["size"], tensors[entry["used"]].numpy()
    if not is_count(size) or packed.dtype != np.uint8 or packed.ndim != 1:
        raise ValueError("of some rows it does not say which slots they are in")
    used, kinds = bits(packed, size), _kinds(entry["blocks"])
    sources: Sequence[Segment] = ()
    if entry["segments"]:
        require_folder(home)
        sources = [Segment(home / name, note.segments[name], kinds, size) for name in entry["segments"]]
    covered = np.zeros(size, np.bool_)
    for source in sources:
        covered[source.slots] = True
    if (used & ~covered).any():
        raise ValueError(f"{int(np.count_nonzero(used & ~covered)):,} of its rows are in no segment")
    return StoredRows(used, kinds, sources, home)


def _kinds(blocks: Mapping[str, Any]) -> Kinds:
    kinds = {}
    for name, (dtype, shape) in blocks.items():
        if not DTYPE.fullmatch(dtype) or not isinstance(shape, list) or not all(map(is_count, shape)):
            raise ValueError(f"column {name[:200]!r} has no type or shape that there is")
        if math.prod(shape) * np.dtype(dtype).itemsize > 1 << 40 or len(shape) > 30:
            raise ValueError(f"column {name[:200]!r} has rows larger than any memory")
        kinds[name] = (np.dtype(dtype), tuple(shape))
    return kinds

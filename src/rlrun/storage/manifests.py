"""Rows of memories that a stored state names, opened; looked at as if a stranger had written it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from rlrun.storage.encoding import DTYPE, bits
from rlrun.storage.rows import Column, Kinds, Rows, home_of
from rlrun.storage.segments import Segment, require_folder
from rlrun.stored import is_count


def open_rows(
    directory: Path, note: Mapping[str, Any], rows: Any, tensors: Mapping[str, Tensor], wanted: Iterable[str]
) -> list[dict[str, Column] | None]:
    """Open the rows of memories; those of parts that are not wanted are None.

    Raises:
        RunDirError: a segment is missing, damaged, or does not fit.
        KeyError, TypeError, ValueError: what is said of the rows is wrong.
    """
    home, columns = home_of(directory.parent), []
    wanted = set(wanted)
    for entry in rows:
        columns.append(_open(home, note, entry, tensors).columns() if entry["part"] in wanted else None)
    return columns


def _open(home: Path, note: Mapping[str, Any], entry: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Rows:
    size, packed = entry["size"], tensors[entry["used"]].numpy()
    if not is_count(size) or packed.dtype != np.uint8 or packed.ndim != 1:
        raise ValueError("of some rows it does not say which slots they are in")
    used, kinds = bits(packed, size), _kinds(entry["blocks"])
    sources: Sequence[Segment] = ()
    if entry["segments"]:
        require_folder(home)
        sources = [Segment(home / name, note["segments"][name], kinds, size) for name in entry["segments"]]
    covered = np.zeros(size, np.bool_)
    for source in sources:
        covered[source.slots] = True
    if (used & ~covered).any():
        raise ValueError(f"{int(np.count_nonzero(used & ~covered)):,} of its rows are in no segment")
    return Rows(used, kinds, sources, home)


def _kinds(blocks: Mapping[str, Any]) -> Kinds:
    kinds = {}
    for name, (dtype, shape) in blocks.items():
        if not DTYPE.fullmatch(dtype) or not isinstance(shape, list) or not all(map(is_count, shape)):
            raise ValueError(f"column {name[:200]!r} has no type or shape that there is")
        if math.prod(shape) * np.dtype(dtype).itemsize > 1 << 40 or len(shape) > 30:
            raise ValueError(f"column {name[:200]!r} has rows larger than any memory")
        kinds[name] = (np.dtype(dtype), tuple(shape))
    return kinds

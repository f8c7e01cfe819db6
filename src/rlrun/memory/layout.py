"""How rows lie in bytes: fields of a packed row, stretches of two rows, arrays in memory or on disk."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlrun.errors import ConfigError
from rlrun.memory.columns import Column
from rlrun.typing import Array, Tree

FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
INDEX = 5  # bytes that the index takes a slot: a stamp and a flag


def cut(tree: Tree, end: int) -> Tree:
    """Return [B, T + 1, …] without its last (-1) or its first (1) step."""
    if isinstance(tree, dict):
        return {key: cut(part, end) for key, part in tree.items()}
    return tree[:, :-1] if end < 0 else tree[:, 1:]


def choose_layout(columns: Sequence[Column]) -> np.dtype[np.void]:
    """Return the fields of a packed row of most of some columns.

    Single bytes stay outside where the padding behind them makes the difference between more and less than a tenth
    that a table takes besides its columns.
    """
    ordered = sorted(columns, key=lambda column: -np.dtype(column.dtype).itemsize)  # aligned without gaps
    layout = _packed(ordered)
    bare = sum(column.nbytes for column in ordered)
    if (layout.itemsize + INDEX) > 1.1 * bare >= bare + INDEX:
        return _packed([column for column in ordered if np.dtype(column.dtype).itemsize > 1])
    return layout


def _packed(columns: Sequence[Column]) -> np.dtype[np.void]:
    """Return the fields of a packed row, its size a multiple of the widest number."""
    sizes = [column.nbytes for column in columns]
    offsets = [sum(sizes[:i]) for i in range(len(sizes))]
    widest = max((np.dtype(column.dtype).itemsize for column in columns), default=1)
    return np.dtype(
        {
            "names": [column.name for column in columns],
            "formats": [(column.dtype, column.shape) for column in columns],
            "offsets": offsets,
            "itemsize": -(-sum(sizes) // widest) * widest,
        }
    )


def overlapping(packed: Array, layout: np.dtype[np.void]) -> tuple[Array, np.dtype[np.void]]:
    """Return overlapping stretches of a row and the observation of the next one, and their fields."""
    fields: Mapping[str, Any] = layout.fields or {}
    kind, offset = fields["observation"][:2]
    widest = max(field[0].base.itemsize for field in fields.values())
    size = -(-(layout.itemsize + offset + kind.itemsize) // widest) * widest
    pair = np.dtype(
        {
            "names": [*fields, "next_observation"],
            "formats": [*(field[0] for field in fields.values()), kind],
            "offsets": [*(field[1] for field in fields.values()), layout.itemsize + offset],
            "itemsize": size,
        }
    )
    return np.ndarray((len(packed) - 1,), f"V{size}", packed, strides=(layout.itemsize,)), pair


def described(layout: np.dtype[np.void]) -> list[list[Any]]:
    """Return name, dtype, shape and offset of each field."""
    fields: Mapping[str, Any] = layout.fields or {}
    return [[name, str(kind.base), list(kind.shape), offset] for name, (kind, offset, *_) in fields.items()]


def fields_of(block: Array, layout: np.dtype[np.void]) -> dict[str, Array]:
    """Return views of packed rows [n, bytes] by field."""
    if not layout.names:
        return {}
    rows = block.view(layout)[:, 0]
    return {name: rows[name] for name in layout.names}


def leaf_of(row: Mapping[str, Any], keys: Sequence[str]) -> Any:
    """Return what lies at the end of a way through a tree."""
    value: Any = row
    for key in keys:
        value = value[key]
    return value


def zeros(slots: int, shape: tuple[int, ...], dtype: str, directory: Path | None) -> Array:
    """Return zeros in main memory, whose pages are taken when they are first written, or in a nameless file.

    Raises:
        ConfigError: the disk has no place for them.
    """
    size = slots * int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    if directory is None or size == 0:
        return np.zeros((slots, *shape), dtype)
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)  # a full disk shows now, and not as a crash in mid-run
            else:
                os.truncate(file.fileno(), size)
            return np.memmap(file, dtype=dtype, mode="r+", shape=(slots, *shape))
    except OSError as error:
        if error.errno in FULL:
            what = f"{size / 1e9:.1f} GB do not fit in {directory}"
        else:
            what = f"{directory} cannot be written"
        raise ConfigError(f"memory.directory: {what}: {error.strerror or error}") from None

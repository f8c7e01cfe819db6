"""The rows of a table: small columns packed in one array, large ones in arrays of their own.

One gather then reads all small columns of a sample; its tensors are views of the gathered block.
"""

import errno
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlrun.checkpointing.segments import StoredColumn
from rlrun.core.errors import ConfigError, RlrunError
from rlrun.core.spaces import map_tree, nest
from rlrun.core.typing import Array, Batch, Tree
from rlrun.memory.table.columns import Column

PACKED_ROWS = "packed rows"  # it differs from all names of columns
STAGED = 256  # rows; larger staging blocks are not kept
PACKED = 1024  # bytes; a larger column, an image for one, is not packed


class Storage:
    """Column → [slots, …].

    Args:
        columns: of each slot.
        slots: number of slots.
        directory: of a file without a name that holds the arrays; None = main memory. The file disappears with the
            process.
        sparse: name -> `rlrun.memory.table.sparse.Sparse` of the columns with values at some rows only.

    Raises:
        ConfigError: the disk has no place for them.
    """

    def __init__(
        self,
        columns: Iterable[Column],
        slots: int,
        directory: Path | None,
        sparse: Mapping[str, Any],
    ) -> None:
        self.columns = {column.name: column for column in columns}
        self.directory = directory
        self.sparse = sparse
        full = [column for name, column in self.columns.items() if name not in self.sparse]
        self.layout = choose_layout([column for column in full if column.nbytes <= PACKED])
        self.blocks: dict[str, Array] = {PACKED_ROWS: zeros(slots, (self.layout.itemsize,), "uint8", directory)}
        for column in full:
            if column.name not in (self.layout.names or ()):
                self.blocks[column.name] = zeros(slots, column.shape, column.dtype, directory)
        self.changed = np.zeros(slots, np.bool_)  # rows that `put` has changed, for checkpoints
        self._tree_of_keys = nest({name: name for name in self.columns})
        self._staging: dict[int, tuple[Array, dict[str, Array]]] = {}
        self._look()

    def _look(self) -> None:
        """Set the views of the blocks."""
        packed = self.blocks[PACKED_ROWS]
        self._records = packed.view(self.layout)[:, 0] if packed.size else packed
        self._void = packed.view(f"V{self.layout.itemsize}").reshape(-1) if packed.size else packed
        self._plain = {name for name in self.layout.names or () if "." not in name}
        self.arrays: dict[str, Any] = {name: self.blocks[name] for name in self.columns if name in self.blocks}
        self.arrays |= fields_of(packed, self.layout) | {**self.sparse}
        self._leaves = [(name, column.keys, self.arrays[name]) for name, column in self.columns.items()]

    @property
    def nbytes(self) -> int:
        """Bytes of all columns."""
        return sum(block.nbytes for block in (*self.blocks.values(), *(part.values for part in self.sparse.values())))

    def write(self, slots: Any, row: Mapping[str, Tree]) -> None:
        """Put a row at each slot: every column of the table, values [n, …].

        Raises:
            RlrunError: the row lacks a column.
        """
        try:
            if isinstance(slots, slice):
                for name, keys, array in self._leaves:
                    array[slots] = row[name] if len(keys) == 1 else leaf_of(row, keys)
            elif len(slots):
                self._write_many(slots, row)
        except KeyError as missing:
            wanted, names = ", ".join(self), ", ".join(row)
            raise RlrunError(f"memory: a row lacks {missing}; wanted {wanted}; given {names}") from None

    def _write_many(self, slots: Array, row: Mapping[str, Tree]) -> None:
        """Pack the rows first: one scattered write in place of one for each column."""
        count = len(slots)
        staging = self._staging.get(count)
        if staging is None:
            block = np.zeros((count, self.layout.itemsize), np.uint8)
            rows = block.view(f"V{self.layout.itemsize}").reshape(-1) if block.size else block
            staging = rows, fields_of(block, self.layout)
            if count <= STAGED:
                if len(self._staging) > 128:  # any number of envs may end together
                    self._staging.clear()
                self._staging[count] = staging
        void, fields = staging
        for name, keys, array in self._leaves:
            value = row[name] if len(keys) == 1 else leaf_of(row, keys)
            if name in fields:
                fields[name][...] = value
            else:
                array[slots] = value
        if fields:
            self._void[slots] = void

    def write_last(self, slots: Any, observation: Tree) -> None:
        """Write last observations to new slots, and zeros to all other columns.

        Zeros replace old values, which checkpoints lack, so that a resumed table is equal.
        """
        for block in (*self.blocks.values(), *self.sparse.values()):
            block[slots] = 0
        for _, keys, array in self._leaves:
            if keys[0] == "observation":
                array[slots] = leaf_of({"observation": observation}, keys)

    def put(self, name: str, slots: Any, values: Any) -> None:
        """Write values to slots of a column, or of a leaf by its dotted name."""
        self.arrays[name][slots] = values
        self.changed[slots] = True

    def gather(self, name: str, slots: Array) -> Tree:
        """Return a column (or a leaf of it, by dotted name) at slots of any shape, as tensors that own their memory.

        Raises:
            RlrunError: there is no such column.
        """
        if name in self.columns:
            array = self.arrays[name]
            if name in self.blocks:  # a block of its own
                # slots are valid; "clip" saves numpy a check and a buffer: 3 times as fast as indexing
                return torch.from_numpy(array.take(slots, axis=0, mode="clip"))
            return torch.from_numpy(array[slots] if name in self.sparse or array.ndim == 1 else self._take(slots)[name])
        try:
            node = leaf_of(self._tree_of_keys, name.split("."))
        except (KeyError, TypeError):
            raise RlrunError(f"memory: there is no column '{name}'; there are {', '.join(self.columns)}") from None
        return self._part(node, self._take(slots), slots)

    def _take(self, slots: Array) -> Array:
        """Return packed rows, of the shape of the slots, with named fields."""
        return self._records.take(slots, mode="clip") if self._records.size else self._records

    def fetch(self, names: Iterable[str], slots: Array) -> Batch:
        """Return top-level columns at slots [B] or [B, T] by one gather of the packed part; the tensors share it."""
        return self._batch(names, self._take(slots), slots)

    def _batch(self, names: Iterable[str], rows: Array, slots: Array) -> Batch:
        plain, tensor = self._plain, torch.from_numpy  # looked up once
        return {
            name: tensor(rows[name]) if name in plain else self._part(self._tree_of_keys[name], rows, slots)
            for name in names
        }

    def _part(self, node: Any, rows: Array, slots: Array) -> Tree:
        if node.__class__ is dict:
            return {key: self._part(part, rows, slots) for key, part in node.items()}
        if node in self.blocks:
            return torch.from_numpy(self.blocks[node].take(slots, axis=0, mode="clip"))
        return torch.from_numpy(self.sparse[node][slots] if node in self.sparse else rows[node])

    def fetch_run(self, names: Sequence[str], run: Array) -> Batch:
        """Return top-level columns at slots [B, T + 1] but the last, and `next_observation` at all but the first."""
        whole = self._batch(dict.fromkeys((*names, "observation")), self._take(run), run)
        batch: Batch = {name: map_tree(lambda tensor: tensor[:, :-1], whole[name]) for name in names}
        return batch | {"next_observation": map_tree(lambda tensor: tensor[:, 1:], whole["observation"])}

    def resize(self, slots: int, old: Array, new: Array) -> None:
        """Change the number of slots; the row of slot old[i] moves to slot new[i]."""
        for name, block in list(self.blocks.items()):
            grown = zeros(slots, block.shape[1:], block.dtype.name, self.directory)
            for part in np.array_split(np.arange(len(old)), max(1, len(old) // 65536)):
                grown[new[part]] = block[old[part]]
            self.blocks[name] = grown
        self.changed = np.zeros(slots, np.bool_)
        self._look()

    def state_dict(self, slots: Array, columns: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the blocks at the slots, or the columns of a checkpoint, and the layout of packed rows."""
        index = slice(None) if len(slots) == len(self.changed) else slots
        blocks = {
            name: torch.from_numpy(block[index]) if columns is None else columns[name]
            for name, block in self.blocks.items()
        }
        sparse = {name: part.state_dict() for name, part in self.sparse.items()}
        return {
            "blocks": blocks,
            "layout": described(self.layout, self.sparse),
            **({"sparse": sparse} if sparse else {}),
        }

    def check_state(self, state: dict[str, Any]) -> None:
        """Refuse a state of other columns.

        Raises:
            RlrunError: names both.
        """
        shapes = {name: (tuple(block.shape[1:]), block.dtype) for name, block in state["blocks"].items()}
        wanted = {name: (block.shape[1:], torch.from_numpy(block[:0]).dtype) for name, block in self.blocks.items()}
        if shapes != wanted or state["layout"] != described(self.layout, self.sparse):
            saved = [name for name, *_ in state["layout"]] + [name for name in shapes if name != PACKED_ROWS]
            raise RlrunError(
                f"memory: the saved table has columns {', '.join(sorted(saved))}; "
                f"this one has {', '.join(sorted(self.columns))}, or others of these shapes and dtypes"
            )

    def load_state_dict(self, state: dict[str, Any], slots: Array) -> None:
        """Load saved blocks into the slots: tensors, or columns on disk, piece by piece; then check choices."""
        for name, part in self.sparse.items():
            part.load_state_dict(state["sparse"][name])
        for name, block in self.blocks.items():
            saved = state["blocks"][name]
            begin = 0
            for piece in saved.pieces() if isinstance(saved, StoredColumn) else (saved.numpy(),):
                block[slots[begin : begin + len(piece)]] = piece
                begin += len(piece)
        for name, column in self.columns.items():
            if column.choices:
                column.require_choices(self.arrays[name][slots], "memory: the saved table")
        self.changed[:] = False

    def __iter__(self) -> Iterator[str]:
        return iter(self._tree_of_keys)

    def __contains__(self, name: str) -> bool:
        return name in self._tree_of_keys


FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
INDEX = 5  # bytes that the index takes a slot: a stamp and a flag


def choose_layout(columns: Sequence[Column]) -> np.dtype[np.void]:
    """Return the fields of a packed row.

    Columns of single bytes are not packed if their padding would make the table more than a tenth larger than its
    columns.
    """
    columns = sorted(columns, key=lambda column: -np.dtype(column.dtype).itemsize)  # aligned without gaps
    bare = sum(column.nbytes for column in columns)
    widest = max((np.dtype(column.dtype).itemsize for column in columns), default=1)
    if -(-bare // widest) * widest + INDEX > 1.1 * bare >= bare + INDEX:
        columns = [column for column in columns if np.dtype(column.dtype).itemsize > 1]
    sizes = [column.nbytes for column in columns]
    return np.dtype(
        {
            "names": [column.name for column in columns],
            "formats": [(column.dtype, column.shape) for column in columns],
            "offsets": [sum(sizes[:i]) for i in range(len(sizes))],
            "itemsize": -(-sum(sizes) // widest) * widest,  # a multiple of the widest number
        }
    )


def described(layout: np.dtype[np.void], sparse: Mapping[str, Any]) -> list[list[Any]]:
    """Return name, dtype, shape and offset of each field, and a description of each sparse column."""
    fields: Mapping[str, Any] = layout.fields or {}
    packed = [[name, str(kind.base), list(kind.shape), offset] for name, (kind, offset, *_) in fields.items()]
    return packed + [part.described() for part in sparse.values()]


def fields_of(block: Array, layout: np.dtype[np.void]) -> dict[str, Array]:
    """Return views of packed rows [n, bytes] by field."""
    if not layout.names:
        return {}
    rows = block.view(layout)[:, 0]
    return {name: rows[name] for name in layout.names}


def joined(trees: Sequence[Tree]) -> Tree:
    """Return trees of tensors concatenated along the first dimension."""
    return map_tree(lambda *leaves: torch.cat(leaves), *trees)


def leaf_of(row: Mapping[str, Any], keys: Sequence[str]) -> Any:
    """Return the leaf, or the part of a tree, at the end of a path."""
    return reduce(getitem, keys, row)


def zeros(slots: int, shape: tuple[int, ...], dtype: str, directory: Path | None) -> Array:
    """Return zeros in main memory, which takes pages at their first write, or in a file without a name.

    Raises:
        ConfigError: the disk has no place for them.
    """
    size = slots * int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    if directory is None or size == 0:
        return np.zeros((slots, *shape), dtype)
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)  # a full disk fails here, not during the run
            else:
                os.truncate(file.fileno(), size)
            return np.memmap(file, dtype=dtype, mode="r+", shape=(slots, *shape))
    except OSError as error:
        if error.errno in FULL:
            what = f"{size / 1e9:.1f} GB do not fit in {directory}"
        else:
            what = f"{directory} cannot be written"
        raise ConfigError(f"memory.directory: {what}: {error.strerror or error}") from None

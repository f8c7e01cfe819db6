"""What a table keeps of each step: one flat array a column, images as they came."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rlrun.errors import ConfigError, RlrunError, did_you_mean
from rlrun.spaces import Box, Leaf, Space, Spaces, leaves
from rlrun.typing import Array, Tree


@dataclass(frozen=True)
class Column:
    """One value a step; "observation.position" is the leaf `position` of the tree `observation`."""

    name: str
    shape: tuple[int, ...] = ()
    dtype: str = "float32"

    @property
    def keys(self) -> tuple[str, ...]:
        """The way to the leaf in a row."""
        return tuple(self.name.split("."))


def columns_of(spaces: Spaces) -> dict[str, Column]:
    """Return the columns of a step: observation, action, reward, terminated, truncated."""
    columns = [_column("observation", path, leaf, leaf.dtype) for path, leaf in leaves(spaces.observation)]
    columns += [_column("action", path, leaf, _action_dtype(leaf)) for path, leaf in leaves(spaces.action)]
    columns += [Column("reward"), Column("terminated", dtype="bool"), Column("truncated", dtype="bool")]
    return {column.name: column for column in columns}


def _column(root: str, path: str, leaf: Leaf, dtype: str) -> Column:
    # doubles cost twice the memory and every network wants singles
    return Column(f"{root}.{path}" if path else root, leaf.shape, "float32" if dtype == "float64" else dtype)


def _action_dtype(leaf: Space) -> str:
    return "float32" if isinstance(leaf, Box) else "int64"  # policy actions, whatever the environment takes


def make_columns(spaces: Spaces | None, extra: Mapping[str, Any] | None) -> list[Column]:
    """Join the columns of the spaces and those asked for by name.

    Raises:
        ConfigError: no column at all, a setting that columns do not have, or an unknown dtype.
    """
    columns = columns_of(spaces) if spaces is not None else {}
    for name, given in (extra or {}).items():
        columns[name] = given if isinstance(given, Column) else _parse(name, given)
    if not columns:
        raise ConfigError("memory: a table needs spaces or columns; both are missing")
    return list(columns.values())


def _parse(name: str, given: Mapping[str, Any] | None) -> Column:
    settings = dict(given or {})
    shape, dtype = settings.pop("shape", ()), settings.pop("dtype", "float32")
    for key in settings:
        raise ConfigError(f"memory.columns.{name}: no setting '{key}'{did_you_mean(key, ('shape', 'dtype'))}")
    try:
        dtype = np.dtype(dtype).name
    except TypeError:
        raise ConfigError(f"memory.columns.{name}.dtype: '{dtype}' is not a numpy dtype") from None
    return Column(name, (shape,) if isinstance(shape, int) else tuple(shape), dtype)


class Storage:
    """The arrays behind a table: column → [slots, …]."""

    def __init__(self, columns: Iterable[Column], slots: int) -> None:
        self.columns = {column.name: column for column in columns}
        self.arrays = {name: np.zeros((slots, *column.shape), column.dtype) for name, column in self.columns.items()}
        self.tree: dict[str, Any] = {}
        for name, column in self.columns.items():
            node = self.tree
            for key in column.keys[:-1]:
                node = node.setdefault(key, {})
            node[column.keys[-1]] = self.arrays[name]

    def write(self, slots: Any, row: Mapping[str, Tree]) -> None:
        """Put a row at each slot: every column of the table, values [n, …].

        Raises:
            RlrunError: the row lacks a column.
        """
        try:
            _write(self.tree, slots, row)
        except KeyError as missing:
            wanted, given = ", ".join(self), ", ".join(row)
            raise RlrunError(f"memory: a row lacks {missing}; wanted {wanted}; given {given}") from None

    def write_leaf(self, name: str, slots: Any, value: Tree) -> None:
        """Put the values of one top-level column at the slots."""
        _write({name: self.tree[name]}, slots, {name: value})

    def gather(self, name: str, slots: Array) -> Tree:
        """Return a column (or a leaf of it, by dotted name) at the slots, as tensors with memory of their own."""
        node: Any = self.tree
        for key in name.split("."):
            node = node[key]
        return _take(node, slots)

    def __iter__(self) -> Iterator[str]:
        return iter(self.tree)

    def __contains__(self, name: str) -> bool:
        return name in self.tree


def _write(node: Mapping[str, Any], slots: Any, row: Mapping[str, Tree]) -> None:
    for name, array in node.items():
        if array.__class__ is dict:
            _write(array, slots, row[name])
        else:
            array[slots] = row[name]


def _take(node: Any, slots: Array) -> Tree:
    if node.__class__ is dict:
        return {name: _take(part, slots) for name, part in node.items()}
    # the slots are right by construction; "clip" spares numpy the check and a buffer (3x faster than indexing)
    return torch.from_numpy(node.take(slots, axis=0, mode="clip"))

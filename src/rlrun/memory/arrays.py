"""Data sets as rows by number: arrays, a file of them, or a torch Dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from rlrun.errors import ConfigError
from rlrun.files import main_memory, reason
from rlrun.memory.episodes import flat, map_tree, nest, stack
from rlrun.memory.loaders import chosen
from rlrun.typing import Array, Batch, Tree

SHARE = 2  # the items of a Dataset may fill one part in so many of this machine's memory
EMPTY = "loader.dataset: there are no rows in it"


class Source(Protocol):
    """Rows that a loader can ask for by number."""

    names: tuple[str, ...]

    def __len__(self) -> int: ...

    def batch(self, rows: Array) -> Batch:
        """Return some rows [B] as tensors with memory of their own."""


class Lazy:
    """Marks a Dataset whose items are read when a batch asks for them, each time anew.

    For what is larger than memory, or is different each time. Otherwise items are read once, at the start.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset


class Columns:
    """Arrays of one length, by name: trees [n, …].

    Raises:
        ConfigError: they differ in length, hold no numbers, or there are none.
    """

    def __init__(self, columns: Mapping[str, Any], names: Sequence[str] | None = None) -> None:
        self.names = chosen(names, tuple(columns))
        self.columns = {name: _arrays(columns[name], name) for name in self.names}
        lengths = {name: len(leaf) if leaf.ndim else 0 for name, leaf in flat(self.columns).items()}
        if len(set(lengths.values())) > 1:
            sizes = ", ".join(f"{name} has {length:,}" for name, length in lengths.items())
            raise ConfigError(f"loader.dataset: columns differ in length: {sizes}")
        self._length = min(lengths.values(), default=0)
        if not self._length:
            raise ConfigError(EMPTY)

    def __len__(self) -> int:
        return self._length

    def batch(self, rows: Array) -> Batch:
        return {name: map_tree(partial(_take, rows), tree) for name, tree in self.columns.items()}


class Items:
    """The items of a Dataset, read when they are asked for.

    Raises:
        ConfigError: it has no length or no items, or its items are not as wanted.
    """

    def __init__(self, dataset: Any, names: Sequence[str] | None = None) -> None:
        if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
            raise ConfigError(
                f"loader.dataset: a {type(dataset).__name__} has no length or no items; wanted arrays by name, "
                "a file, a table, or a Dataset with __len__ and __getitem__"
            )
        if not len(dataset):
            raise ConfigError(EMPTY)
        self.dataset = dataset
        first = dataset[0]
        if isinstance(first, Mapping):
            self.names = chosen(names, tuple(first))
        else:
            count = len(_parts(first))
            if names is None or len(names) != count:
                listing = "none" if names is None else ", ".join(names)
                raise ConfigError(
                    f"loader.columns: every item of the data set has {count} parts, one name each; given: {listing}"
                )
            self.names = chosen(names, tuple(names))
        self._by_name = isinstance(first, Mapping)

    def __len__(self) -> int:
        return len(self.dataset)

    def item(self, row: int) -> Batch:
        """Return one item as a tree of arrays […]."""
        item = self.dataset[row]
        named = item if self._by_name else dict(zip(self.names, _parts(item), strict=True))
        return {name: _arrays(named[name], name) for name in self.names}

    def batch(self, rows: Array) -> Batch:
        batch: Batch = map_tree(torch.from_numpy, stack([self.item(row) for row in rows.tolist()]))
        return batch

    def read(self) -> Columns:
        """Return all items as columns, each read once.

        Raises:
            ConfigError: an item differs from the first in shape or kind, or memory would not hold them.
        """
        count, first = len(self), self.item(0)
        size, limit = count * sum(leaf.nbytes for leaf in flat(first).values()), main_memory() / SHARE
        if size > limit:
            raise ConfigError(
                f"loader.dataset: its {count:,} items take {size / 1e9:.1f} GB of memory, more than "
                f"{limit / 1e9:.1f} GB; rlrun.memory.Lazy around it reads them when they are asked for"
            )
        columns = map_tree(lambda leaf: np.empty((count, *leaf.shape), leaf.dtype), first)
        leaves = flat(columns)
        for row in range(count):
            for name, value in flat(self.item(row)).items():
                column = leaves[name]
                if value.shape != column.shape[1:] or not np.can_cast(value.dtype, column.dtype, "same_kind"):
                    raise ConfigError(
                        f"loader.dataset: '{name}' of item {row} is {value.dtype} {list(value.shape)}; "
                        f"that of item 0 is {column.dtype} {list(column.shape[1:])}"
                    )
                column[row] = value
        return Columns(columns)


def read_arrays(path: Path) -> dict[str, Any]:
    """Return the arrays of an .npz; a dotted name is a leaf of a tree. Nothing in it is run.

    Raises:
        ConfigError: it is missing, damaged, or holds objects.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            return nest({name: file[name] for name in file.files})
    except (ValueError, EOFError, BadZipFile) as error:
        raise ConfigError(f"loader.dataset: {path} is damaged or holds something else than arrays: {error}") from error
    except OSError as error:
        raise ConfigError(f"loader.dataset: {path} cannot be read: {reason(error)}") from error


def source_of(dataset: Any, columns: Sequence[str] | None) -> Source:
    """Return the rows of arrays by name, or of a Dataset.

    Raises:
        ConfigError: it is nothing to learn from.
    """
    if isinstance(dataset, Lazy):
        return Items(dataset.dataset, columns)
    if isinstance(dataset, Mapping):
        return Columns(dataset, columns)
    tensors = getattr(dataset, "tensors", None)
    if isinstance(tensors, tuple) and columns is not None and len(columns) == len(tensors):  # a TensorDataset
        return Columns(dict(zip(columns, tensors, strict=True)), columns)
    return Items(dataset, columns).read()


def _parts(item: Any) -> Sequence[Any]:
    return item if isinstance(item, tuple | list) else (item,)


def _arrays(tree: Any, name: str) -> Tree:
    """Return a tree of arrays; doubles become singles, as networks want them."""
    if isinstance(tree, Mapping):
        return {key: _arrays(part, f"{name}.{key}") for key, part in tree.items()}
    value = tree.detach().cpu().numpy() if isinstance(tree, Tensor) else np.asarray(tree)
    if value.dtype.kind not in "biufc":
        raise ConfigError(f"loader.dataset: '{name}' holds {value.dtype}, wanted numbers")
    return value.astype(np.float32) if value.dtype == np.float64 else value


def _take(rows: Array, column: Array) -> Tensor:
    return torch.from_numpy(column.take(rows, axis=0, mode="clip"))  # the rows are right; "clip" spares their check

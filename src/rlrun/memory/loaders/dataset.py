"""A loader of data sets: epochs that serve every row once."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.core import distributed
from rlrun.core.errors import ConfigError, RlrunError, RunDirError, require_at_least, require_counts
from rlrun.core.files import counted, open_regular, reason
from rlrun.core.machine import main_memory
from rlrun.core.spaces import flat, map_tree, nest, stack
from rlrun.core.typing import Array, Batch, Groups, Tree
from rlrun.memory.adaptors.adaptor import Adaptor, adapt, adapted, arrange
from rlrun.memory.formats.sources import EMPTY, table_of
from rlrun.memory.loaders.replay import chosen
from rlrun.memory.table.samplers import Rows
from rlrun.memory.table.table import Table


class DatasetLoader:
    """Serves a data set in batches: every row once an epoch, in a random order.

    A data set is one of these:

    * arrays by name, or the path of an `.npz`
    * a table, a stored memory, or `minari:DATASET`: their complete rows
    * a torch Dataset or a sequence of tuples, dicts or arrays, whose items are read once; with `rlrun.memory.Lazy` each
      batch reads its items
    * a part of one of these: `train` or `held_out` of a `rlrun.memory.Split`

    Numbers of double precision become float32.

    Args:
        dataset: to learn from.
        batch: rows of a batch.
        columns: names of a tuple's parts; for other data sets the names to keep, None = all.
        epochs: number of epochs; None = endless.
        shuffle: False keeps the order.
        hold_out: share of the rows to leave out, at least one row, evenly spread from an offset that the seed draws; a
            row of a table stays in or out.
        held_out: True serves that share instead; adaptors then neither learn nor draw.
        adaptors: a list, or by name; `rows` is None except for a table, whose own adaptors come first.
        seed: of the order.
        data_group: name of the batches.
        device: of the batches.

    Raises:
        ConfigError: the data set is of an unknown kind, or has no rows."""

    def __init__(
        self,
        dataset: Any,
        *,
        batch: int,
        columns: Sequence[str] | None = None,
        epochs: int | None = None,
        shuffle: bool = True,
        hold_out: float = 0.0,
        held_out: bool = False,
        adaptors: Sequence[Adaptor] | Mapping[str, Adaptor] = (),
        seed: int = 0,
        data_group: str = "default",
        device: str = "cpu",
    ) -> None:
        require_at_least("batch", batch, 1)
        if epochs is not None:
            require_at_least("epochs", epochs, 1)
        if not 0.0 <= hold_out < 1.0 or (held_out and not hold_out):
            raise ConfigError(f"hold_out: wanted a share from 0 to 1, above 0 if held_out, got {hold_out}")
        self.source = source_of(dataset, columns)
        self.batch, self.epochs = batch, epochs
        self.shuffle = shuffle
        self.adaptors = arrange(adaptors)
        self.seed = seed
        self.data_group = data_group
        self.device = torch.device(device)
        self.hold_out, self.held_out = hold_out, held_out
        self.epoch, self.served = 0, 0  # complete epochs, and rows served of the running one
        self._expected: int | None = None  # rows of a checkpoint's table

    def names(self) -> dict[str, tuple[str, ...]]:
        """Return the names that batches will have, by data group."""
        return {self.data_group: adapted(self.source.names, self.adaptors)}

    def __iter__(self) -> Iterator[Groups]:
        while self.epochs is None or self.epoch < self.epochs:
            order = self._order()
            begun = self.epoch
            while self.epoch == begun:
                rows = order[self.served : self.served + self.batch]
                self.served += len(rows)
                if self.served >= len(order):
                    self.epoch, self.served = self.epoch + 1, 0
                yield {self.data_group: self._fetch(rows)}

    def _rows(self) -> Array:
        """Return the rows that are served, in their order."""
        rows = np.arange(len(self.source))
        if not self.hold_out:
            return rows
        places = getattr(self.source, "places", rows)  # a row of a table keeps its slot
        # multiples of the golden ratio spread evenly over [0, 1), so short stretches have their share held out, too
        spread = (places * 0.6180339887498949 + np.random.default_rng(self.seed).random()) % 1.0
        left_out = spread < max(self.hold_out, np.nextafter(spread.min(initial=1.0), 1.0))  # at least one row
        served: Array = rows[left_out == self.held_out]
        return served

    def _order(self) -> Array:
        """Return the rows of the running epoch, in an order that depends on seed and epoch alone."""
        order = self._rows()
        if self.shuffle:
            order = order[np.random.default_rng([self.seed, self.epoch]).permutation(len(order))]
        order = order[: min(distributed.all_gather(len(order)))]  # tables of ranks grow by different numbers of rows
        if not len(order):
            if len(self.source):
                raise ConfigError(
                    f"loader.dataset: of the {len(self.source)} rows, or windows of a recurrent network, hold_out="
                    f"{self.hold_out:g} leaves none to serve; two are enough, and a table gets them by a longer warm-up"
                )
            raise ConfigError(f"loader.dataset: there are no rows{' held out' if self.held_out else ''} to serve")
        if self.served and self._expected not in (None, len(self.source)):  # of a table whose rows were not saved
            self.served = 0
        self._expected = None
        if self.served >= len(order):
            raise RlrunError(
                f"loader.dataset: {self.served:,} of {len(order):,} rows were served before the checkpoint"
            )
        return order

    def __len__(self) -> int:
        return len(self.source)

    @property
    def batches(self) -> int:
        """Number of batches in an epoch."""
        return max(1, -(-min(distributed.all_gather(len(self._rows()))) // self.batch))

    def once(self) -> Iterator[Batch]:
        """Yield batches of all rows in order, treated as held out; the loader's position stays."""
        rows = self._rows()
        for begin in range(0, len(rows), self.batch):
            yield self._fetch(rows[begin : begin + self.batch], evaluation=True)

    def _fetch(self, rows: Array, *, evaluation: bool = False) -> Batch:
        evaluation |= self.held_out or getattr(self.source, "held_out", False)
        batch = adapt(self.adaptors, self.source.batch(rows, evaluation), None, evaluation=evaluation)
        return batch if self.device.type == "cpu" else map_tree(lambda value: value.to(self.device), batch)

    def ready(self) -> bool:
        """Return True: no environment step comes before the next batch."""
        return True

    @property
    def tables(self) -> tuple[Table, ...]:
        """The table of the batches, if the data set is a table."""
        return (self.source.table,) if isinstance(self.source, TableRows) else ()

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the data set."""
        return {"epoch": self.epoch, "served": self.served, "rows": len(self.source)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the batch after the last one.

        Raises:
            RlrunError: the data set has another length.
        """
        require_counts({name: state[name] for name in ("epoch", "served", "rows")})
        if isinstance(self.source, TableRows):
            self._expected = state["rows"]  # the table may be restored later
        elif state["rows"] != len(self.source):
            raise RlrunError(f"loader.dataset: it had {state['rows']:,} rows, and has {len(self.source):,} now")
        self.epoch, self.served = state["epoch"], state["served"]


class TableRows:
    """The complete rows of a table, in the order of their slots; the table may change between epochs only.

    For a recurrent network they are windows, each represented by one of its rows.
    """

    def __init__(self, table: Table, columns: Sequence[str] | None = None) -> None:
        self.table = table
        self.names = chosen(columns, table.names())
        self._version = -1
        self.starts = np.empty(0, np.int64)

    def __len__(self) -> int:
        index = self.table.index
        if self._version != index.version:
            slots = np.flatnonzero(index.complete[:-1])
            self.starts = slots[index.unbroken(slots, index.after(slots, 1), 1)]
            if self.table.past is not None:
                first = index.stamp[self.starts] - index.step(self.starts) + self.table.window_of(self.starts)
                self.starts = self.starts[np.unique(first, return_index=True)[1]]
            self._version = index.version
        return len(self.starts)

    @property
    def places(self) -> Array:
        """Numbers that decide which rows are held out, [R]: slots; for windows successive numbers."""
        past, count = self.table.past, len(self)
        return self.starts[:count] / (1 if past is None else past.length - past.burn_in)

    @property
    def episodes(self) -> Array:
        """The number of each row's episode, [R]."""
        count = len(self)  # this updates `starts`
        return self.table.index.episode(self.starts[:count])

    def batch(self, rows: Array, evaluation: bool = False) -> Batch:
        """Return some rows [B] as tensors that own their memory; evaluation: adaptors neither learn nor draw.

        Raises:
            RlrunError: the table changed within an epoch.
        """
        if self._version != self.table.index.version:
            raise RlrunError("loader.dataset: the table changed within an epoch; ReplayLoader serves one that grows")
        weighs = "weight" in self.table.sampler.provides
        weight = np.ones(len(rows), np.float32) if weighs else None
        served = Rows(self.starts[rows], None, self.table.index, weight)
        if self.table.past is not None:
            served = self.table.parted(served)
            assert served.windows is not None
            # long and short windows are served once each: all rows of a batch count alike
            served.windows = np.full(served.index.shape, served.windows.mean())
        batch = self.table.look_up(served, evaluation=evaluation)
        return {name: batch[name] for name in self.names}


@dataclass(frozen=True)
class DatasetPart:
    """Some rows of a data set.

    Attributes:
        source: the whole data set.
        rows: indices of the rows, [R].
        names: of the columns.
        held_out: whether it is for evaluation.
    """

    source: Columns | Items | TableRows
    rows: Array
    names: tuple[str, ...]
    held_out: bool

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, rows: Array, evaluation: bool = False) -> Batch:
        """Return some of these rows, counted from 0: [B] -> tensors [B, …]."""
        batch = self.source.batch(self.rows[rows], evaluation)
        return {name: batch[name] for name in self.names}


def source_of(dataset: Any, columns: Sequence[str] | None = None) -> Columns | Items | TableRows | DatasetPart:
    """Return a reader of the rows of a data set, as `DatasetLoader` takes it.

    Raises:
        ConfigError: it is of an unknown kind, or has no rows.
    """
    if isinstance(dataset, DatasetPart):
        return dataset if columns is None else dataclasses.replace(dataset, names=chosen(columns, dataset.names))
    if isinstance(dataset, str | Path):
        arrays = str(dataset).endswith(".npz")
        dataset = read_arrays(Path(dataset).expanduser()) if arrays else table_of(str(dataset))
    if isinstance(dataset, Table):
        return TableRows(dataset, columns)
    if isinstance(dataset, Mapping):
        return Columns(dataset, columns)
    tensors = getattr(dataset, "tensors", None)
    if isinstance(tensors, tuple) and columns is not None and len(columns) == len(tensors):  # a TensorDataset
        return Columns(dict(zip(columns, tensors, strict=True)), columns)
    return Items(dataset.dataset, columns) if isinstance(dataset, Lazy) else Items(dataset, columns).read()


SHARE = 2  # the items of a Dataset may fill 1 / SHARE of this machine's memory


class Lazy:
    """A Dataset whose items every batch reads again, for items that are random or do not fit in memory.

    Items of other data sets are read once, at the start.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset


class Columns:
    """Arrays of one length, by name: trees [n, …].

    Raises:
        ConfigError: they are empty, differ in length, or hold nan, inf or other things than numbers.
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
        for name, leaf in flat(self.columns).items():
            if leaf.dtype.kind in "fc" and (bad := (~np.isfinite(leaf)).reshape(len(leaf), -1).any(1).sum()):
                raise ConfigError(f"loader.dataset: column {name}: nan or inf in {counted(int(bad), 'row')}")

    def __len__(self) -> int:
        return self._length

    def batch(self, rows: Array, evaluation: bool = False) -> Batch:
        def taken(column: Array) -> Tensor:  # the rows are valid; "clip" saves their check
            return torch.from_numpy(column.take(rows, axis=0, mode="clip"))

        return {name: map_tree(taken, tree) for name, tree in self.columns.items()}


class Items:
    """The items of a Dataset, read for each batch.

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
        self._by_name = isinstance(first, Mapping)
        if not self._by_name and len(names or ()) != len(_parts(first)):
            raise ConfigError(
                f"loader.columns: every item of the data set has {len(_parts(first))} parts, one name each; "
                f"given: {', '.join(names or ('none',))}"
            )
        self.names = chosen(names, tuple(first if self._by_name else names or ()))

    def __len__(self) -> int:
        return len(self.dataset)

    def item(self, row: int) -> Batch:
        """Return one item as a tree of arrays […]."""
        item = self.dataset[row]
        named = item if self._by_name else dict(zip(self.names, _parts(item), strict=True))
        return {name: _arrays(named[name], name) for name in self.names}

    def batch(self, rows: Array, evaluation: bool = False) -> Batch:
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
                f"{limit / 1e9:.1f} GB; rlrun.memory.Lazy around it reads them for each batch"
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
    """Return the arrays of an .npz, without running code from it; a dotted name is a leaf of a tree.

    Raises:
        ConfigError: it is missing, damaged, or holds objects.
    """
    try:
        with os.fdopen(open_regular(path), "rb") as opened, np.load(opened, allow_pickle=False) as file:
            return nest({name: file[name] for name in file.files})
    except RunDirError as error:
        raise ConfigError(f"loader.dataset: {error}") from error
    except OSError as error:
        raise ConfigError(f"loader.dataset: {path} cannot be read: {reason(error)}") from error
    except Exception as error:  # a forged file may raise anything
        why = next(iter(str(error).splitlines()), type(error).__name__)
        why = "objects, or no archive at all" if "pickle" in why else why
        raise ConfigError(f"loader.dataset: {path} is damaged or holds something else than arrays: {why}") from error


def _parts(item: Any) -> Sequence[Any]:
    return item if isinstance(item, tuple | list) else (item,)


def _arrays(tree: Any, name: str) -> Tree:
    """Return a tree of arrays; float64 becomes float32."""
    if isinstance(tree, Mapping):
        return {key: _arrays(part, f"{name}.{key}") for key, part in tree.items()}
    value = tree.detach().cpu().numpy() if isinstance(tree, Tensor) else np.asarray(tree)
    if value.dtype.kind not in "biufc":
        raise ConfigError(f"loader.dataset: '{name}' holds {value.dtype}, wanted numbers")
    return value.astype(np.float32) if value.dtype == np.float64 else value

"""Learning from data that is there: epochs of a data set, each row once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlrun.errors import ConfigError, RlrunError
from rlrun.memory import files
from rlrun.memory.adaptors import Adaptor, adapted, arrange
from rlrun.memory.arrays import EMPTY, Columns, Source, read_arrays, source_of
from rlrun.memory.columns import Column
from rlrun.memory.episodes import add_all, flat, map_tree
from rlrun.memory.loaders import at_least, chosen
from rlrun.memory.samplers import Rows, Sampler
from rlrun.memory.sources import episodes_in
from rlrun.memory.table import Table
from rlrun.typing import Array, Batch, Groups


class DatasetLoader:
    """Serve a data set in batches: every row once an epoch, in an order drawn anew for each.

    A data set is arrays by name, or the path of an `.npz`; a table (its complete rows, as it serves
    them), or what a memory was stored in (a file, `minari:DATASET`); or a torch Dataset or sequence of
    tuples, dicts or arrays, whose items are read once and kept as arrays (or, in a `rlrun.memory.Lazy`,
    when they are asked for). Doubles become singles.

    Args:
        dataset: what to learn from.
        batch: rows of one.
        columns: names of a tuple's parts; else the names that are kept, None = all.
        epochs: after so many the loader ends; None = never.
        shuffle: False keeps the order.
        drop_last: leave out a last batch that is smaller.
        adaptors: a list, or by name; `rows` is None but for a table, whose own adaptors come first.

    Raises:
        ConfigError: the data set is nothing to learn from.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        batch: int,
        columns: Sequence[str] | None = None,
        epochs: int | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        adaptors: Sequence[Adaptor] | Mapping[str, Adaptor] = (),
        seed: int = 0,
        data_group: str = "default",
        device: str = "cpu",
    ) -> None:
        at_least("batch", batch, 1)
        if epochs is not None:
            at_least("epochs", epochs, 1)
        self.source = _open(dataset, columns)
        self.batch = batch
        self.epochs = epochs
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.adaptors = arrange(adaptors)
        self.seed = seed
        self.data_group = data_group
        self.device = torch.device(device)
        self.epoch, self.served = 0, 0  # epochs that are over, and rows served of the running one
        if drop_last and batch > len(self.source):
            raise ConfigError(f"loader.batch: {batch} with drop_last leaves nothing of {len(self.source)} rows")

    def names(self) -> dict[str, tuple[str, ...]]:
        """Return the names that batches will have, by data group."""
        return {self.data_group: adapted(self.source.names, self.adaptors)}

    def __iter__(self) -> Iterator[Groups]:
        while self.epochs is None or self.epoch < self.epochs:
            count = len(self.source)
            order = np.arange(count)
            if self.shuffle:  # the number of the epoch alone decides
                order = np.random.default_rng([self.seed, self.epoch]).permutation(count)
            while self.served < count - (self.batch - 1) * self.drop_last:
                rows = order[self.served : self.served + self.batch]
                self.served += len(rows)
                yield {self.data_group: self._fetch(rows)}
            self.epoch, self.served = self.epoch + 1, 0

    def _fetch(self, rows: Array) -> Batch:
        batch = self.source.batch(rows)
        for adaptor in self.adaptors:
            batch = adaptor(batch, None)
        return batch if self.device.type == "cpu" else map_tree(lambda value: value.to(self.device), batch)

    def ready(self) -> bool:
        """Tell whether the next batch depends on nothing that is still to come: always."""
        return True

    @property
    def tables(self) -> tuple[Table, ...]:
        """What batches are drawn from, where it is a table."""
        return (self.source.table,) if isinstance(self.source, TableRows) else ()

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the data set."""
        return {"epoch": self.epoch, "served": self.served, "rows": len(self.source)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the batch after the last one.

        Raises:
            RlrunError: the data set has another length.
        """
        if state["rows"] != len(self.source):
            raise RlrunError(f"loader.dataset: it had {state['rows']:,} rows, and has {len(self.source):,} now")
        self.epoch, self.served = state["epoch"], state["served"]


class TableRows:
    """The complete rows of a table that nobody adds to, in the order of their slots."""

    def __init__(self, table: Table, columns: Sequence[str] | None = None) -> None:
        self.table = table
        self.names = chosen(columns, table.names())
        self._sampler = _Given(weighs="weight" in table.sampler.provides)
        self._sampler.bind(table.index)
        self._version = -1
        self._starts = np.empty(0, np.int64)
        self._look()
        if not len(self._starts):
            raise ConfigError("loader.dataset: the table holds no transition")

    def _look(self) -> None:
        index = self.table.index
        if self._version != index.version:
            slots = np.flatnonzero(index.complete[:-1])
            self._starts = slots[index.unbroken(slots, index.after(slots, 1), 1)]
            self._version = index.version

    def __len__(self) -> int:
        self._look()
        return len(self._starts)

    def batch(self, rows: Array) -> Batch:
        """Return some rows [B].

        Raises:
            RlrunError: somebody wrote to the table within an epoch.
        """
        if self._version != self.table.index.version:
            raise RlrunError("loader.dataset: the table changed within an epoch; ReplayLoader serves one that grows")
        table, sampler = self.table, self.table.sampler
        self._sampler.start = self._starts[rows]
        table.sampler = self._sampler
        try:
            batch = table.sample(len(rows))
        finally:
            table.sampler = sampler
        return {name: batch[name] for name in self.names}


class _Given(Sampler):
    """Picks the rows that it was told to."""

    start: Array

    def __init__(self, *, weighs: bool) -> None:
        self.weighs = weighs

    def pick(self, count: int, length: int) -> Rows:
        return self.rows(self.start, length, np.ones(count, np.float32) if self.weighs else None)


def _open(dataset: Any, columns: Sequence[str] | None) -> Source:
    if isinstance(dataset, str | Path):
        if str(dataset).endswith(".npz"):
            return Columns(read_arrays(Path(dataset)), columns)
        dataset = table_of(str(dataset))
    return TableRows(dataset, columns) if isinstance(dataset, Table) else source_of(dataset, columns)


def table_of(source: str) -> Table:
    """Return a table with the columns and rows of what a memory was stored in: a file, or `minari:DATASET`.

    Raises:
        RequestError: it is missing or damaged.
    """
    episodes = episodes_in(source)
    if episodes is None:
        path = Path(source).expanduser()
        about = files.about(path)
        stored = about["table"]["columns"].items()
        table = Table(
            length=about["rows"], columns={name: Column(name, tuple(shape), dtype) for name, (shape, dtype) in stored}
        )
        files.restore(table, path)
        return table
    if not episodes:
        raise ConfigError(EMPTY)
    columns = {name: _column(name, leaf) for name, leaf in flat(episodes[0].row).items()}
    table = Table(length=sum(len(episode) + 1 for episode in episodes), columns=columns)
    add_all(table, episodes, append=False)
    return table


def _column(name: str, values: Array) -> Column:
    return Column(name, values.shape[1:], "float32" if values.dtype == np.float64 else values.dtype.name)

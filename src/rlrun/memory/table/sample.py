"""A batch that can pass priorities and new values back to its rows in the tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.core.errors import RlrunError
from rlrun.core.spaces import map_tree
from rlrun.core.typing import Batch, Tree
from rlrun.memory.table.recorder import Recorder
from rlrun.memory.table.samplers import Rows

PARTS = 4  # of a table by age, whose shares of a sample are reported


class Sample(dict[str, Any]):
    """A batch of one table or several, with the rows that each gave.

    Args:
        batch: columns by name.
        parts: tables and their rows, in the order of the batch.
        copies: entries of each row; mirror images, for example, follow the rows of a part.
    """

    __slots__ = ("copies", "parts")

    def __init__(self, batch: Batch, parts: Sequence[tuple[Recorder, Rows]], copies: int = 1) -> None:
        super().__init__(batch)
        self.parts, self.copies = parts, copies

    def __or__(self, other: Any) -> Any:
        return Sample({**self, **other}, self.parts, self.copies)

    def feedback(self, priority: Tensor) -> None:
        """Pass the priorities of the rows to the samplers that drew them, priority: [B] or [B, T].

        Of several copies of a row the largest priority counts.

        Raises:
            RlrunError: they are of another number of windows.
        """
        if len(self.parts) == 1 and self.copies == 1:
            ((table, rows),) = self.parts
            table.sampler.feedback(rows, priority)
            return
        counts = [self.copies * len(rows.index) for _, rows in self.parts]
        if not priority.dim() or len(priority) != sum(counts):
            raise RlrunError(f"memory: {[*priority.shape]} priorities for a sample of {sum(counts)} windows")
        for (table, rows), part in zip(self.parts, torch.split(priority, counts), strict=True):
            table.sampler.feedback(rows, torch.stack(part.chunk(self.copies)).amax(0))

    def rewrite(self, values: Mapping[str, Tree]) -> None:
        """Store new values of columns for the rows: values [B, …] or [B, T, …], by name; see `Recorder.rewrite`.

        Raises:
            RlrunError: a column cannot be rewritten, or its values have another shape.
        """
        first = 0
        for table, rows in self.parts:
            own = slice(first, first + len(rows.index)) if len(self.parts) > 1 or self.copies > 1 else slice(None)
            first += self.copies * len(rows.index)
            table.rewrite(rows, map_tree(lambda value, own=own: value[own], dict(values)))

    @property
    def metrics(self) -> dict[str, float]:
        """The mean age of the rows that are still stored, and the share of each part of the tables by age."""
        ages, parts = [], []
        for table, rows in self.parts:
            index, start = table.index, rows.start
            age = index.age(start[index.stamp[start] >= 0])
            oldest = max(min(int(index.written.max()), index.size // index.num_envs), 1)
            ages.append(age)
            parts.append(np.minimum(age * PARTS // oldest, PARTS - 1))
        age = np.concatenate(ages)
        if not len(age):
            return {}
        share = np.bincount(np.concatenate(parts), minlength=PARTS) / len(age)
        names = (f"memory/sampled_share_{part + 1}_of_{PARTS}" for part in range(PARTS))
        return {"memory/sampled_age": float(age.mean()), **dict(zip(names, share.tolist(), strict=True))}


def origins(groups: Batch, tables: Sequence[Recorder]) -> list[dict[str, Any]]:
    """Return, for a checkpoint, the tables and rows of the samples in these data groups, nested ones included."""
    return [
        {"path": path, "copies": sample.copies, "parts": [_origin(table, rows, tables) for table, rows in sample.parts]}
        for path, sample in _samples(groups, [])
    ]


def _samples(groups: Batch, path: list[str]) -> Iterator[tuple[list[str], Sample]]:
    for name, batch in groups.items():
        if isinstance(batch, Sample):
            yield [*path, name], batch
        elif isinstance(batch, dict):
            yield from _samples(batch, [*path, name])


def _origin(table: Recorder, rows: Rows, tables: Sequence[Recorder]) -> dict[str, Any]:
    state = {"table": [*map(id, tables)].index(id(table)), "parted": rows.parted}
    arrays = {"index": rows.index, "valid": rows.valid, "written": rows.written}
    return state | {name: torch.from_numpy(np.array(array)) for name, array in arrays.items() if array is not None}


def with_origins(groups: Batch, origins: Sequence[Mapping[str, Any]], tables: Sequence[Recorder]) -> Batch:
    """Return data groups of a checkpoint with the rows of their samples restored."""
    for origin in origins:
        *path, name = origin["path"]
        holder = groups
        for step in path:
            holder = holder[step]
        parts = [_restored(part, tables) for part in origin["parts"]]
        holder[name] = Sample(holder[name], parts, origin.get("copies", 1))
    return groups


def _restored(state: Mapping[str, Any], tables: Sequence[Recorder]) -> tuple[Recorder, Rows]:
    index, written = state["index"].numpy(), state["written"].numpy()
    valid = state["valid"].numpy() if "valid" in state else None
    where = tables[state["table"]].index
    return tables[state["table"]], Rows(index, None, where, valid=valid, parted=state["parted"], written=written)

"""Virtual columns: computed from stored ones when a sample is drawn.

Each is called with the rows of a sample and returns a tree of tensors. Its optional `requires` names the stored columns
that it reads, as they are before any adaptor. An open episode ends with its newest row.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from rlrun.core.errors import require_at_least
from rlrun.core.typing import Array, Tree
from rlrun.memory.adaptors.adaptor import dtype_of
from rlrun.memory.table.index import CLOSED
from rlrun.memory.table.samplers import Rows


class Next:
    """The element of a column `steps` steps ahead, or the episode's last one if it ends before.

    For observations the last element is the one after the last row; for other columns it is the last row's. The shape
    is [B, …] or [B, T, …], like the column's.
    """

    least = 1  # steps

    def __init__(self, column: str, *, steps: int = 1) -> None:
        require_at_least("steps", steps, self.least)
        self.column = column
        self.steps = steps
        self.requires = (column,)

    def __call__(self, rows: Rows) -> Tree:
        slots, last = ahead(rows, self.column, self.steps)
        return rows.stored(self.column, _taken(slots, np.minimum(last, self.steps)))


class Previous(Next):
    """The element of a column before an observation, as `value`, a tree.

    `known` [B] or [B, T] is False if the episode begins with the observation, or the element before was overwritten.
    There the value is the row's own.

    Args:
        column: its name.
        steps: from the row to the observation; 0 = the row's own. If the episode ends before, the observation is the
            last one. With the steps of `NStep` it is `next_observation`.
    """

    least = 0

    def __init__(self, column: str, *, steps: int = 0) -> None:
        super().__init__(column, steps=steps)

    def __call__(self, rows: Rows) -> Tree:
        if self.steps:
            slots, reach = rows.onward(self.steps)
            slots, known = _taken(slots, reach - 1), np.ones(reach.shape, np.bool_)
        else:
            before = rows.where.before(rows.index, 1)
            known = rows.where.within(np.stack([before, rows.index], -1), np.arange(2))[..., 0]
            slots = np.where(known, before, rows.index)
        return {"value": rows.stored(self.column, slots), "known": torch.from_numpy(known)}


class NextN:
    """The `n` elements of a column after each row, [B, n, …] or [B, T, n, …].

    If the episode ends before, its last element is repeated.
    """

    def __init__(self, column: str, *, n: int) -> None:
        require_at_least("n", n, 1)
        self.column = column
        self.n = n
        self.requires = (column,)

    def __call__(self, rows: Rows) -> Tree:
        slots, last = ahead(rows, self.column, self.n)
        steps = np.minimum(last[..., None], np.arange(1, self.n + 1))
        return rows.stored(self.column, np.take_along_axis(slots, steps, -1))


class LastOfWindow:
    """One element of a column for each window, [B, …]: that of the step after its last row, see `Next`.

    With `after` False it is the last row's own. The last row of a padded window is its last valid one.
    """

    def __init__(self, column: str, *, after: bool = True) -> None:
        self.column = column
        self.after = after
        self.requires = (column,)

    def __call__(self, rows: Rows) -> Tree:
        if not self.after:
            return rows.stored(self.column, rows.end)
        final = replace(rows, index=rows.end, following=None, valid=None, run=None)
        slots, last = ahead(final, self.column, 1)
        return rows.stored(self.column, _taken(slots, np.minimum(last, 1)))


class EpisodeEnd:
    """Whether the episode ended with this row, terminated or truncated: bool, or of another dtype."""

    requires = ("terminated", "truncated")

    def __init__(self, *, dtype: str = "bool") -> None:
        self.dtype = dtype_of("memory.columns: EpisodeEnd.dtype", dtype)

    def __call__(self, rows: Rows) -> Tensor:
        episode_end: Tensor = rows.stored("terminated", rows.index) | rows.stored("truncated", rows.index)
        return episode_end.to(self.dtype)


class Continues:
    """The factor of the value after a row: 0 where the episode terminated, otherwise 1."""

    requires = ("terminated",)

    def __init__(self, *, dtype: str = "float32") -> None:
        self.dtype = dtype_of("memory.columns: Continues.dtype", dtype)

    def __call__(self, rows: Rows) -> Tensor:
        terminated: Tensor = rows.stored("terminated", rows.index)
        return (~terminated).to(self.dtype)


def ahead(rows: Rows, column: str, steps: int) -> tuple[Array, Array]:
    """Return the slots [..., steps + 1] of each row and the steps after it, and the number of steps with the column."""
    slots, reach = rows.onward(steps)
    if column.partition(".")[0] == "observation":
        return slots, reach
    final = _taken(slots, reach)
    # the slot of a last observation holds no other columns; the newest row of an open episode holds all
    where = rows.where
    bare = ~where.complete[final] & (where.status[where.episode(final)] == CLOSED)
    return slots, reach - bare


def _taken(slots: Array, steps: Array) -> Array:
    """Return slots[..., steps]: one along the last axis for each of the others."""
    return np.take_along_axis(slots, steps[..., None], -1)[..., 0]

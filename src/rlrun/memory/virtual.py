"""Virtual columns: computed from stored ones when a sample is drawn.

Each is called with the rows of a sample and returns a tree of tensors. Its optional `requires` names the stored columns
that it reads, as they are before any adaptor. An open episode ends with its newest row.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from rlrun.core.errors import require_at_least
from rlrun.core.spaces import map_tree
from rlrun.core.typing import Array, Tree
from rlrun.memory.adaptors import dtype_of
from rlrun.memory.index import CLOSED
from rlrun.memory.samplers import Rows


class Next:
    """The element of a column `steps` steps ahead, or the last one of the episode if that ends before.

    The last observation of an episode is the one after its last row. Of other columns the last element is that of the
    last row. The shape is [B, …] or [B, T, …], like the column.
    """

    least = 1  # steps

    def __init__(self, column: str, *, steps: int = 1) -> None:
        require_at_least(f"memory.columns: {type(self).__name__}.steps", steps, self.least)
        self.column = column
        self.steps = steps
        self.requires = (column,)

    def __call__(self, rows: Rows) -> Tree:
        slots, last = ahead(rows, self.column, self.steps)
        return rows.stored(self.column, _taken(slots, np.minimum(last, self.steps)))


class Previous(Next):
    """The element of a column before an observation, as `value`, a tree.

    `known` [B] or [B, T] is False where the episode begins with the observation, or where the element before was
    overwritten. There the value is the row's own.

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
        require_at_least("memory.columns: NextN.n", n, 1)
        self.column = column
        self.n = n
        self.requires = (column,)

    def __call__(self, rows: Rows) -> Tree:
        slots, last = ahead(rows, self.column, self.n)
        steps = np.minimum(last[..., None], np.arange(1, self.n + 1))
        return rows.stored(self.column, np.take_along_axis(slots, steps, -1))


class Unrolled:
    """What a latent is learned from: an observation, the actions after it, and columns at each later step.

    `observation` [B, …] is the row's own and `action` [B, R, …] has that of the row and of the next ones. `target` has
    columns by name, [B, R + 1, …]: those of an observation at this observation and the R later ones; other columns at
    the steps that led there. Before an episode begins these are zeros. `valid` [B, R + 1] is False behind the end of
    the episode, where the last element is repeated. Of windows all are [B, T, …].

    Args:
        steps: R.
        fields: columns by the name of their target.
    """

    def __init__(self, *, steps: int, fields: Mapping[str, str]) -> None:
        require_at_least("memory.columns: Unrolled.steps", steps, 0)
        self.steps, self.fields = steps, dict(fields)
        self.requires = tuple(dict.fromkeys(("observation", "action", *self.fields.values())))

    def __call__(self, rows: Rows) -> Tree:
        slots, reach = rows.index[..., None], np.zeros(rows.index.shape, np.int64)
        if self.steps:
            slots, reach = rows.onward(self.steps)
        position, reach = np.arange(self.steps + 1), reach[..., None]
        valid = position <= reach
        seen = np.take_along_axis(slots, np.minimum(position, reach), -1)
        acted = np.take_along_axis(slots, np.minimum(position[:-1], np.maximum(reach - 1, 0)), -1)
        before, begins = rows.where.before(rows.index, 1), rows.step == 0
        led = np.concatenate([np.where(begins, rows.index, before)[..., None], acted], -1)
        target = {}
        for name, field in self.fields.items():
            if field.partition(".")[0] == "observation":
                target[name] = rows.stored(field, seen)
            else:
                target[name] = map_tree(partial(_begun, begins=torch.from_numpy(begins)), rows.stored(field, led))
                kept = rows.where.within(np.stack([before, rows.index], -1), np.arange(2))[..., 0]
                valid[..., 0] &= begins | kept
        return {
            "observation": rows.stored("observation", rows.index),
            "action": rows.stored("action", acted),
            "valid": torch.from_numpy(valid),
            "target": target,
        }


class LastOfWindow:
    """One element of a column for each window, [B, …]: the one of the step after its last row, as `Next` has it.

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
    """Return the slots of each row and of the `steps` after it [..., steps + 1], and how many steps have the column."""
    slots, reach = rows.onward(steps)
    if column.partition(".")[0] == "observation":
        return slots, reach
    final = _taken(slots, reach)
    # the slot of a last observation holds nothing else; the newest row of a running episode holds all
    where = rows.where
    bare = ~where.complete[final] & (where.status[where.episode(final)] == CLOSED)
    return slots, reach - bare


def _begun(values: Tensor, begins: Tensor) -> Tensor:
    """Return values [B, R + 1, …] with zeros at the first position of rows with which an episode begins."""
    values = values.clone()
    values[begins, 0] = 0
    return values


def _taken(slots: Array, steps: Array) -> Array:
    """Return slots[..., steps]: one along the last axis for each of the others."""
    return np.take_along_axis(slots, steps[..., None], -1)[..., 0]

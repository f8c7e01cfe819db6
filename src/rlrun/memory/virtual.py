"""Columns that are computed from others when a sample is drawn; they take no room in the table.

Each is called with the rows of a sample and answers with a tree of tensors; `requires`, where it has that, names the
stored columns that it reads. It sees what is stored, before any adaptor changes it. "As stored" means: of an episode
that still runs, up to its newest row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.core.errors import ConfigError, did_you_mean
from rlrun.core.typing import Array, Tree
from rlrun.memory.adaptors import dtype_of
from rlrun.memory.index import CLOSED
from rlrun.memory.samplers import Rows


def check(columns: Mapping[str, Any], stored: Iterable[str]) -> None:
    """Refuse columns that read what is not stored; stored: leaves of columns included.

    Raises:
        ConfigError: with the nearest name.
    """
    known = [*stored]
    for name, column in columns.items():
        for read in getattr(column, "requires", ()):
            if read not in known:
                raise ConfigError(
                    f"memory.columns.{name} reads '{read}'; stored are {', '.join(known)}{did_you_mean(read, known)}"
                )


class Next:
    """The element of a column `steps` steps on; where the episode is over before, its last one.

    The last observation of an episode is the one after its last row; of other columns it is that of the
    last row. [B, …] or [B, T, …], like the column.
    """

    def __init__(self, column: str, *, steps: int = 1) -> None:
        self.column = column
        self.steps = _positive("Next.steps", steps)
        self.requires = (column,)

    def __call__(self, rows: Rows) -> Tree:
        slots, last = ahead(rows, self.column, self.steps)
        return rows.stored(self.column, _taken(slots, np.minimum(last, self.steps)))


class Previous:
    """The element of a column that comes before an observation, as `value`, a tree.

    `known` [B] or [B, T] is False where the episode begins there, or where memory has lost what was before, and the
    value is the row's own.

    Args:
        column: its name.
        steps: from the row to the observation; 0 = the row's own. Where the episode is over before, it is the last
            observation, so with the steps of `NStep` it is `next_observation`.
    """

    def __init__(self, column: str, *, steps: int = 0) -> None:
        self.column = column
        self.steps = steps if steps == 0 else _positive("Previous.steps", steps)
        self.requires = (column,)

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

    Where the episode is over before, its last element is repeated.
    """

    def __init__(self, column: str, *, n: int) -> None:
        self.column = column
        self.n = _positive("NextN.n", n)
        self.requires = (column,)

    def __call__(self, rows: Rows) -> Tree:
        slots, last = ahead(rows, self.column, self.n)
        steps = np.minimum(last[..., None], np.arange(1, self.n + 1))
        return rows.stored(self.column, np.take_along_axis(slots, steps, -1))


class LastOfWindow:
    """One element of a column for each window, [B, …]: the one that follows it.

    The observation after the last row, or another column's value of the step after it, clamped like `Next`;
    `after` False: the last row's own. Of a padded window it is the last valid row that counts.
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
    """Whether the episode ended with this row, one way or the other: bool, or of another dtype."""

    requires = ("terminated", "truncated")

    def __init__(self, *, dtype: str = "bool") -> None:
        self.dtype = dtype_of("memory.columns: Ended.dtype", dtype)

    def __call__(self, rows: Rows) -> Tensor:
        episode_end: Tensor = rows.stored("terminated", rows.index) | rows.stored("truncated", rows.index)
        return episode_end.to(self.dtype)


class Continues:
    """What the value after a row counts: 0 where the episode terminated, else 1, also where it was cut off."""

    requires = ("terminated",)

    def __init__(self, *, dtype: str = "float32") -> None:
        self.dtype = dtype_of("memory.columns: Continues.dtype", dtype)

    def __call__(self, rows: Rows) -> Tensor:
        terminated: Tensor = rows.stored("terminated", rows.index)
        return (~terminated).to(self.dtype)


class NStepReturn:
    """The discounted sum of the rewards of up to `steps` steps, fewer where the episode is over before."""

    requires = ("reward",)

    def __init__(self, *, steps: int, discount: float) -> None:
        self.steps = _positive("NStepReturn.steps", steps)
        self.powers = np.power(discount, np.arange(steps)).astype(np.float32)

    def __call__(self, rows: Rows) -> Tensor:
        slots, reach = rows.onward(self.steps)
        counted = torch.from_numpy(self.powers * (np.arange(self.steps) < reach[..., None]))
        reward = rows.stored("reward", slots[..., :-1])
        counted = counted.reshape(*counted.shape, *[1] * (reward.dim() - counted.dim()))  # [B, n, 1] for [B, n, R]
        summed: Tensor = (reward * counted).sum(reach.ndim)
        return summed


class NStepDiscount:
    """What the value after `NStepReturn` counts: discount ** steps made, 0 where the last of them terminated."""

    requires = ("terminated",)

    def __init__(self, *, steps: int, discount: float) -> None:
        self.steps = _positive("NStepDiscount.steps", steps)
        self.powers = np.power(discount, np.arange(steps + 1)).astype(np.float32)

    def __call__(self, rows: Rows) -> Tensor:
        slots, reach = rows.onward(self.steps)
        terminated: Tensor = rows.stored("terminated", _taken(slots, reach - 1))
        return torch.from_numpy(self.powers[reach]).masked_fill_(terminated, 0.0)


def ahead(rows: Rows, column: str, steps: int) -> tuple[Array, Array]:
    """Look up to `steps` steps ahead: slots [..., steps + 1], and how far each row's column reaches [...]."""
    slots, reach = rows.onward(steps)
    if column.partition(".")[0] == "observation":
        return slots, reach
    final = _taken(slots, reach)
    # the slot of a last observation holds nothing else; the newest row of a running episode holds all
    where = rows.where
    bare = ~where.complete[final] & (where.status[where.episode(final)] == CLOSED)
    return slots, reach - bare


def _taken(slots: Array, steps: Array) -> Array:
    """Return slots[..., steps]: one along the last axis for each of the others."""
    return np.take_along_axis(slots, steps[..., None], -1)[..., 0]


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise ConfigError(f"memory.columns: {name} must be at least 1, not {value}")
    return value

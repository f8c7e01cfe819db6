"""A column with values at some rows only: recurrent states at the beginning of windows."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlrun.core.errors import RlrunError
from rlrun.core.typing import Array
from rlrun.memory.table.columns import Column
from rlrun.memory.table.storage import zeros


class Sparse:
    """The values of a column at every n-th step of an episode but the first; indexed by slots, as arrays of all rows.

    A row has the newest value at or before its step, and zeros before the first one. Values of an env of a `RingIndex`
    are at least n rows apart. So the count of its rows, divided by n, gives each an entry of its own. There are so many
    entries that a value stays until the last row is overwritten that has it.
    """

    def __init__(self, column: Column, index: Any, directory: Path | None) -> None:
        self.column, self.index, self.directory = column, index, directory
        self.shift = np.zeros(index.num_envs, np.int64)  # rows by which resizing lowered the count of each env
        self.values = self._zeros()  # [N, entries, *shape]

    def _zeros(self) -> Array:
        envs, entries = self.index.num_envs, self.index.slots // self.column.every + 3
        values = zeros(envs * entries, self.column.shape, self.column.dtype, self.directory)
        return values.reshape(envs, entries, *self.column.shape)

    def _places(self, slots: Any) -> tuple[Array, Array, Array, Array]:
        """Return env and entry of the value of each slot, the step of the value, and that of the slot."""
        env_index, step = self.index.env_of(slots), self.index.step(slots)
        first = step - step % self.column.every
        count = self.index.first[self.index.episode(slots)] + first + self.shift[env_index]
        return env_index, count // self.column.every % self.values.shape[1], first, step

    def __setitem__(self, slots: Any, values: Any) -> None:
        env_index, entry, first, step = self._places(slots)
        chosen = (step == first) & (first > 0)
        rows = np.broadcast_to(values, (*step.shape, *self.column.shape))
        self.values[env_index[chosen], entry[chosen]] = rows[chosen]

    def __getitem__(self, slots: Any) -> Array:
        env_index, entry, first, _ = self._places(slots)
        values: Array = self.values[env_index, entry]
        values[first == 0] = 0
        return values

    def resize(self, moved: Array) -> None:
        """Follow a resize of the index, which lowered the count of rows of each env by `moved` [N]."""
        old, self.values = self.values, self._zeros()
        self.shift += moved
        number = ((self.index.written + self.shift) // self.column.every)[:, None] - np.arange(old.shape[1])
        env_index = np.arange(len(old))[:, None]
        self.values[env_index, number % self.values.shape[1]] = old[env_index, number % old.shape[1]]

    def described(self) -> list[Any]:
        """Return a description that is equal for tables which can load each other's values."""
        return [self.column.name, f"{self.column.dtype} of {self.column.every} rows", [*self.values.shape], 0]

    def state_dict(self) -> dict[str, Any]:
        """Return the entries that were ever written."""
        written = int((self.index.written + self.shift).max()) // self.column.every + 1
        return {
            "values": torch.from_numpy(self.values[:, :written].copy()),
            "shift": torch.from_numpy(self.shift.copy()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned.

        Raises:
            RlrunError: it has other entries than this column, or more.
        """
        values, shift = state["values"].numpy(), state["shift"].numpy()
        envs, entries, *shape = self.values.shape
        fits = values.ndim > 1 and [len(values), *values.shape[2:]] == [envs, *shape] and values.shape[1] <= entries
        if not fits or (values.dtype, shift.dtype, shift.shape) != (self.values.dtype, np.int64, (envs,)):
            raise RlrunError(f"memory: the saved column '{self.column.name}' does not fit {[envs, entries, *shape]}")
        self.values[:] = 0
        self.values[:, : values.shape[1]] = values
        self.shift = shift.copy()

"""What happens to a sample before it is a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from rlrun.errors import ConfigError, RlrunError
from rlrun.memory.samplers import Rows
from rlrun.typing import Batch, Tree


class Adaptor(Protocol):
    """Returns a changed batch and leaves tensors as they are.

    `rows` lets it look around the sample; None where the batch does not come from a table.
    """

    @property
    def provides(self) -> tuple[str, ...]:
        """Names that it adds to the batch, or rewrites."""

    @property
    def replaces(self) -> tuple[str, ...]:
        """Names that it gives without reading them; the table need not fetch them for the first adaptor."""

    @property
    def removes(self) -> tuple[str, ...]:
        """Names that it takes out of the batch."""

    def __call__(self, batch: Batch, rows: Rows | None) -> Batch: ...


class NStep:
    """Look up to `steps` steps ahead, fewer where the episode (as far as it is stored) ends before.

    reward becomes the discounted sum over these steps, next_observation the one after them,
    terminated and truncated those of the last of them, and discount what the value there counts:
    `discount ** steps made`. Works on stored rewards, so whatever changes rewards comes after it.
    """

    provides = ("reward", "next_observation", "terminated", "truncated", "discount")
    removes = ()

    def __init__(self, *, steps: int, discount: float) -> None:
        if steps < 1:
            raise ConfigError(f"memory.adaptors: NStep.steps must be at least 1, not {steps}")
        self.steps = steps
        self.powers = np.power(discount, np.arange(steps + 1)).astype(np.float32)
        self.counted = np.tril(np.tile(self.powers[:-1], (steps + 1, 1)), -1)  # steps made -> what each reward counts
        self.replaces = () if steps == 1 else ("next_observation", "terminated", "truncated")

    def __call__(self, batch: Batch, rows: Rows | None) -> Batch:
        if rows is None:
            raise RlrunError("memory.adaptors: NStep looks ahead in a table, and this batch comes from none")
        slots, made = rows.onward(self.steps)  # [B, n + 1], [B] or [B, T, n + 1], [B, T]
        reward = np.einsum("...n,...n->...", rows.gather("reward", slots[..., :-1]).numpy(), self.counted[made])
        flat, first = slots.reshape(-1), np.arange(0, slots.size, self.steps + 1).reshape(made.shape)
        successor, last = flat[first + made], flat[first + made - 1]
        return batch | {
            "reward": torch.from_numpy(reward),
            "next_observation": rows.gather("observation", successor),
            "terminated": rows.gather("terminated", last),
            "truncated": rows.gather("truncated", last),
            "discount": torch.from_numpy(self.powers[made]),
        }


class Cast:
    """Give a column another dtype."""

    removes = replaces = ()

    def __init__(self, column: str, *, dtype: str = "float32") -> None:
        self.dtype = getattr(torch, dtype, None)
        if not isinstance(self.dtype, torch.dtype):
            raise ConfigError(f"memory.adaptors: Cast.dtype '{dtype}' is not a torch dtype")
        self.column = column
        self.provides = (column,)

    def __call__(self, batch: Batch, rows: Rows | None) -> Batch:
        return batch | {self.column: _map(batch[self.column], self._cast)}

    def _cast(self, value: Tensor) -> Tensor:
        return value.to(self.dtype)


class Scale:
    """Multiply a column by a factor; integers become float32."""

    removes = replaces = ()

    def __init__(self, column: str, *, factor: float) -> None:
        self.column = column
        self.factor = factor
        self.provides = (column,)

    def __call__(self, batch: Batch, rows: Rows | None) -> Batch:
        return batch | {self.column: _map(batch[self.column], self._scale)}

    def _scale(self, value: Tensor) -> Tensor:
        return value * self.factor if value.is_floating_point() else value.to(torch.float32).mul_(self.factor)


class Rename:
    """Call columns by other names: `names` maps the old to the new."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = dict(names)
        self.provides = tuple(self.names.values())
        self.removes = tuple(self.names)
        self.replaces = ()

    def __call__(self, batch: Batch, rows: Rows | None) -> Batch:
        return {self.names.get(name, name): value for name, value in batch.items()}


def _map(tree: Tree, function: Callable[[Tensor], Tensor]) -> Tree:
    if isinstance(tree, dict):
        return {name: _map(part, function) for name, part in tree.items()}
    return function(tree)

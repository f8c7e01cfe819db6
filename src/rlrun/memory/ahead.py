"""Several steps joined to one."""

from __future__ import annotations

import numpy as np
import torch

from rlrun.errors import ConfigError, RlrunError
from rlrun.memory.adaptors import AHEAD
from rlrun.memory.samplers import Rows
from rlrun.typing import Array, Batch


class NStep:
    """Look up to `steps` steps ahead, fewer where the episode (as far as it is stored) ends before.

    reward becomes the discounted sum over these steps, next_observation the one after them,
    terminated and truncated those of the last of them, and discount what the value there counts:
    `discount ** steps made`. Rewards of several dimensions are summed one by one.
    """

    tier = AHEAD
    removes = ()

    def __init__(self, *, steps: int, discount: float) -> None:
        if steps < 1:
            raise ConfigError(f"memory.adaptors: NStep.steps must be at least 1, not {steps}")
        self.steps = steps
        self.powers = np.power(discount, np.arange(steps + 1)).astype(np.float32)
        self.counted = np.tril(np.tile(self.powers[:-1], (steps + 1, 1)), -1)  # steps made -> what each reward counts
        ahead = () if steps == 1 else ("next_observation", "terminated", "truncated")
        self.requires: tuple[str, ...] = ("reward", *ahead)
        self.provides: tuple[str, ...] = ("discount",) if steps == 1 else ("reward", *ahead, "discount")
        self.replaces: tuple[str, ...] = ahead and ("reward", *ahead)

    def __call__(self, batch: Batch, rows: Rows | None) -> Batch:
        if rows is None:
            raise RlrunError("memory.adaptors: NStep looks ahead in a table, and this batch comes from none")
        if self.steps == 1:  # everything is as it should be
            return batch | {"discount": torch.full(rows.index.shape, float(self.powers[1]))}
        return batch | self.ahead(rows)[0]

    def ahead(self, rows: Rows, most: Array | None = None) -> tuple[Batch, Array]:
        """Return what becomes of rows, and how many steps of each are joined [B]; most: [B], where there is a limit."""
        slots, reach = rows.onward(self.steps)  # [B, n + 1], [B] or [B, T, n + 1], [B, T]
        if most is not None:
            reach = np.minimum(reach, most)
        if rows.altered("terminated"):  # what was stored ends the episode anyway
            terminated = rows.gather("terminated", slots[..., :-1]).numpy()  # [..., n]
            reach = np.where(terminated.any(-1), np.minimum(reach, terminated.argmax(-1) + 1), reach)
        flat, first = slots.reshape(-1), np.arange(0, slots.size, self.steps + 1).reshape(reach.shape)
        successor, last = flat[first + reach], flat[first + reach - 1]
        batch = {
            "reward": torch.from_numpy(self._sum(rows.gather("reward", slots[..., :-1]).numpy(), reach)),
            "next_observation": rows.gather("observation", successor),
            "terminated": rows.gather("terminated", last),
            "truncated": rows.gather("truncated", last),
            "discount": torch.from_numpy(self.powers[reach]),
        }
        return batch, reach

    def _sum(self, reward: Array, reach: Array) -> Array:
        counted = self.counted[reach]
        if reward.ndim == counted.ndim:
            return np.einsum("...n,...n->...", reward, counted)  # type: ignore[no-any-return]
        return np.einsum("...nr,...n->...r", reward, counted)  # type: ignore[no-any-return]

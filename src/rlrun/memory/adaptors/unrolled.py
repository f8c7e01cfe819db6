"""The steps after each row, from which latent dynamics learn."""

from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor

from rlrun.core.errors import RlrunError, require_at_least
from rlrun.core.spaces import map_tree
from rlrun.core.typing import Batch, Tree
from rlrun.memory.adaptors.adaptor import COPIES
from rlrun.memory.table.samplers import Rows
from rlrun.memory.table.storage import leaf_of


class Unrolled:
    """Adds `unrolled`: stored observations, the actions after them, and columns at each later step.

    `observation` [B, …] is the row's own; `action` [B, R, …] has the actions of the row and of the next ones. `target`
    has columns by name, [B, R + 1, …]: parts of this observation and of the R later ones; other columns of the steps
    that led there, with zeros at the start of an episode. `valid` [B, R + 1] is False after the end of the episode,
    where the last element is repeated. It is also False for steps that are not stored: those after the newest row,
    and the one before the oldest. In batches of windows every shape begins with [B, T] in place of [B].

    Args:
        steps: R.
        fields: columns by the name of their target.
    """

    tier = COPIES
    provides = keeps = ("unrolled",)
    removes = replaces = ()

    def __init__(self, *, steps: int, fields: Mapping[str, str]) -> None:
        require_at_least("steps", steps, 0)
        self.steps, self.fields = steps, dict(fields)
        self.led = any(field.partition(".")[0] != "observation" for field in self.fields.values())
        self.requires = tuple(dict.fromkeys(("observation", "action", *self.fields.values())))

    def __call__(self, batch: Batch, rows: Rows | None) -> Batch:
        if rows is None:
            raise RlrunError("memory.adaptors: Unrolled looks ahead in a table, and this batch is not of one")
        slots, reach = rows.index[..., None], np.zeros(rows.index.shape, np.int64)
        if self.steps:
            slots, reach = rows.onward(self.steps)
        position, reach = np.arange(self.steps + 1), reach[..., None]
        valid = position <= reach
        seen = np.take_along_axis(slots, np.minimum(position, reach), -1)
        acted = np.take_along_axis(slots, np.minimum(position[:-1], np.maximum(reach - 1, 0)), -1)
        before, begins = rows.where.before(rows.index, 1), rows.step == 0
        if self.led:
            kept = rows.where.within(np.stack([before, rows.index], -1), np.arange(2))[..., 0]
            valid[..., 0] &= begins | kept
        led = np.concatenate([np.where(begins, rows.index, before)[..., None], acted], -1)
        begun = partial(_begun, begins=torch.from_numpy(begins))
        target = {
            name: rows.stored(field, seen) if _observed(field) else map_tree(begun, rows.stored(field, led))
            for name, field in self.fields.items()
        }
        action = rows.stored("action", acted)
        return batch | {"unrolled": _column(batch["observation"], action, torch.from_numpy(valid), target)}

    def rollout(self, batch: Batch) -> Batch:
        """Return a whole rollout [N, T, …] with `unrolled`."""
        ended = batch["terminated"] | batch["truncated"] | ~batch["valid"]
        envs, count = ended.shape
        row, position = torch.arange(count), torch.arange(self.steps + 1)
        last = torch.where(ended, row, count - 1).flip(1).cummin(1).values.flip(1)
        reach = (last - row + 1).unsqueeze(-1)
        valid = (position <= reach) & batch["valid"].unsqueeze(-1)
        if self.led:
            valid[:, 0, 0] = False
        before = (row - 1).unsqueeze(-1) + torch.minimum(position, reach)  # rows of the steps that led there
        env, before = torch.arange(envs)[:, None, None], before.clamp(min=0)
        begun = partial(_begun, begins=torch.cat((torch.zeros_like(ended[:, :1]), ended[:, :-1]), 1))

        def seen(here: Tensor, later: Tensor) -> Tensor:
            return torch.cat((here.unsqueeze(2), later[env, before[..., 1:]]), 2)

        target = {}
        for name, field in self.fields.items():
            path = field.split(".")
            if _observed(field):
                target[name] = map_tree(seen, leaf_of(batch, path), leaf_of(batch, [f"next_{path[0]}", *path[1:]]))
            else:
                target[name] = map_tree(lambda column: begun(column[env, before]), leaf_of(batch, path))
        action = map_tree(lambda column: column[env, before[..., 1:]], batch["action"])
        return batch | {"unrolled": _column(batch["observation"], action, valid, target)}


def _column(observation: Tree, action: Tree, valid: Tensor, target: Mapping[str, Tree]) -> dict[str, Tree]:
    return {"observation": observation, "action": action, "valid": valid, "target": target}


def _observed(field: str) -> bool:
    """Return True for observations and their parts."""
    return field.partition(".")[0] == "observation"


def _begun(values: Tensor, begins: Tensor) -> Tensor:
    """Return values [B, R + 1, …] with zeros at the first position of rows that begin an episode."""
    values = values.clone()
    values[begins, 0] = 0
    return values

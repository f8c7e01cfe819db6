"""Replay memory: what the environments gave, and batches of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.errors import ConfigError, RlrunError
from rlrun.memory.adaptors import Adaptor
from rlrun.memory.columns import Storage, make_columns
from rlrun.memory.ejectors import Ejector, Fifo
from rlrun.memory.index import EpisodeIndex
from rlrun.memory.samplers import Rows, Sampler, Uniform
from rlrun.spaces import Spaces
from rlrun.typing import Array, Batch, Tree


class Table:
    """Keep the newest `length` transitions of `num_envs` lanes, each lane an equal share.

    A lane's share is a ring that overwrites its oldest rows. The last observation of an episode
    takes a slot like a transition does, so with short episodes fewer transitions fit. A row can
    be sampled once the observation after it is stored, whether or not its episode is over.
    """

    def __init__(
        self,
        *,
        length: int,
        num_envs: int = 1,
        sampler: Sampler | None = None,
        ejector: Ejector | None = None,
        adaptors: Sequence[Adaptor] | Mapping[str, Adaptor] = (),
        columns: Mapping[str, Any] | None = None,
        spaces: Spaces | None = None,
        device: str = "cpu",
        seed: int = 0,
    ) -> None:
        if num_envs < 1 or length < num_envs:
            raise ConfigError(f"memory.length must be at least 1 for each of {num_envs} lanes, not {length}")
        self.index = EpisodeIndex(num_envs=num_envs, slots=length // num_envs + 1)
        self.storage = Storage(make_columns(spaces, columns), len(self.index.stamp))
        self.sampler = sampler if sampler is not None else Uniform(seed=seed)
        self.ejector = ejector if ejector is not None else Fifo()
        self.adaptors = tuple(adaptors.values()) if isinstance(adaptors, Mapping) else tuple(adaptors)
        self.device = torch.device(device)
        self.sampler.bind(self.index)
        self.ejector.bind(self.index)
        self._picked: Rows | None = None
        replaced = getattr(self.adaptors[0], "replaces", ()) if self.adaptors else ()
        self._fetched = tuple(name for name in self.storage if name not in replaced)
        self._successors = "observation" in self.storage and "next_observation" not in replaced

    def add(self, lane: int | Array | None, row: Mapping[str, Tree]) -> None:
        """Store one step of some lanes.

        lane: a number, an array of n numbers, or None for all lanes.
        row: every column, [n, …].
        """
        self.storage.write(self.index.advance(lane), row)

    def close(self, lane: int | Array | None, last: Tree) -> None:
        """End the episodes of some lanes.

        lane: a number, numbers [n], a choice [N] of bools, or None for all lanes.
        last: the observation after the last step, [n, …].
        """
        lanes = self._lanes(lane)
        while len(self.index.free) < len(lanes):
            dropped = self.ejector.pick(len(lanes))
            self.sampler.forget(dropped)
            self.index.drop(dropped)
            # growing while few are free keeps the search for dropped ones rare
            if len(self.index.free) < max(len(lanes), len(self.index.lane) // 4):
                self.index.grow()
        episodes, slots = self.index.close(lanes)
        if "observation" in self.storage:
            self.storage.write_leaf("observation", slots, last)
        self.sampler.track(episodes)

    def _lanes(self, lane: int | Array | None) -> Array:
        if lane is None:
            return np.arange(self.index.num_envs)
        lanes = np.atleast_1d(np.asarray(lane))
        return np.flatnonzero(lanes) if lanes.dtype == bool else lanes

    def sample(self, count: int, length: int = 1) -> Batch:
        """Draw windows of one episode each, as tensors with memory of their own.

        Returns every column, what adaptors add, and `next_observation`: [B, …] for length 1,
        [B, T, …] otherwise; `weight` [B] where the sampler gives one.

        Raises:
            RlrunError: no window is that long.
        """
        rows = self.sampler.pick(count, length)
        rows.storage = storage = self.storage
        self._picked = rows
        batch = {name: storage.gather(name, rows.index) for name in self._fetched}
        if self._successors:
            batch["next_observation"] = storage.gather("observation", rows.successor)
        if rows.weight is not None:
            batch["weight"] = torch.from_numpy(rows.weight)
        for adaptor in self.adaptors:
            batch = adaptor(batch, rows)
        return batch if self.device.type == "cpu" else _move(batch, self.device)

    def feedback(self, priority: Tensor) -> None:
        """Tell the sampler how surprising the newest sample was, priority: [B] or [B, T].

        Raises:
            RlrunError: there was no sample yet.
        """
        if self._picked is None:
            raise RlrunError("memory: feedback without a sample before it")
        self.sampler.feedback(self._picked, priority)

    def names(self) -> tuple[str, ...]:
        """Return the names that a batch will have."""
        names = list(self.storage)
        names += ["next_observation"] if "observation" in self.storage else []
        names += self.sampler.provides
        for adaptor in self.adaptors:
            names = [name for name in names if name not in adaptor.removes]
            names += [name for name in adaptor.provides if name not in names]
        return tuple(names)

    def windows(self, length: int) -> int:
        """Return how many windows of so many transitions there are."""
        return int(self.index.windows(length).sum())

    def __len__(self) -> int:
        """Return the number of transitions that can be sampled."""
        return self.windows(1)

    @property
    def nbytes(self) -> int:
        """Bytes that the columns take once all rows are written."""
        return sum(array.nbytes for array in self.storage.arrays.values())

    def full(self) -> bool:
        """Tell whether every lane overwrites its oldest rows from now on."""
        return bool((self.index.written >= self.index.slots).all())

    def state_dict(self) -> dict[str, Any]:
        """Return columns, index and sampler; the tensors share the table's memory."""
        columns = {name: torch.from_numpy(array) for name, array in self.storage.arrays.items()}
        return {"columns": columns, "index": self.index.state_dict(), "sampler": self.sampler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back the state of a table of the same size and columns.

        Raises:
            RlrunError: size or columns differ.
        """
        arrays = self.storage.arrays
        shapes = {name: tuple(column.shape) for name, column in state["columns"].items()}
        wanted = {name: array.shape for name, array in arrays.items()}
        if shapes.keys() != wanted.keys() or any(shapes[name][1:] != wanted[name][1:] for name in wanted):
            raise RlrunError(f"memory: the saved table has columns {shapes}; this one has {wanted}")
        self.index.load_state_dict(state["index"])
        for name, array in arrays.items():
            array[...] = state["columns"][name].numpy()
        self.sampler.load_state_dict(state["sampler"])


def _move(tree: Tree, device: torch.device) -> Tree:
    if isinstance(tree, dict):
        return {name: _move(part, device) for name, part in tree.items()}
    return tree.to(device)

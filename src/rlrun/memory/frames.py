"""Stacked observations kept as single frames: each frame is stored once, and stacks are made when they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from rlrun.memory.columns import Column, Stack
from rlrun.memory.index import EpisodeIndex
from rlrun.memory.storage import Storage
from rlrun.typing import Array, Tree

ROOT = "observation"


class Frames:
    """What is stored of stacked observations, and how to read them back.

    A stack at step s is made of the frames of steps s - count + 1 … s; before the episode's first step its first
    frame is repeated, as the environment's wrapper does. It never reaches into another episode.
    """

    def __init__(self, columns: list[Column], count: int) -> None:
        stacked = [column for column in columns if column.keys[0] == ROOT]
        self.count = count
        self.stacks = {column.name: Stack.of(column, count) for column in stacked}
        self.columns = [
            self.stacks[column.name].frame(column) if column.name in self.stacks else column for column in columns
        ]
        self.shapes = {column.name: column.shape for column in self.columns}

    def newest(self, observation: Tree, name: str = ROOT) -> Tree:
        """Return the newest frames of stacked observations [n, …]; what is a single frame already stays as it is."""
        if isinstance(observation, Mapping):
            return {key: self.newest(part, f"{name}.{key}") for key, part in observation.items()}
        value = np.asarray(observation)
        return value if value.shape[1:] == self.shapes[name] else self.stacks[name].newest(value)

    def reader(self, index: EpisodeIndex, storage: Storage) -> Callable[[str, Array], Tree]:
        """Return what gives any column, or a leaf of it, at slots of any shape; of observations the stacks."""

        def read(name: str, slots: Array) -> Tree:
            if name.partition(".")[0] == ROOT:
                return self.read(index, storage, name, slots)
            return storage.gather(name, slots)

        return read

    def read(self, index: EpisodeIndex, storage: Storage, name: str, slots: Array) -> Tree:
        """Return the stacks of a column, or a leaf of it, at slots of any shape."""
        back = np.minimum(np.arange(self.count)[::-1], index.step(slots)[..., None])
        frames = storage.gather(name, index.before(slots[..., None], back))
        return self._join(frames, name, slots.ndim)

    def _join(self, tree: Any, name: str, lead: int) -> Tree:
        if isinstance(tree, dict):
            return {key: self._join(part, f"{name}.{key}", lead) for key, part in tree.items()}
        frames: Tensor = tree
        return self.stacks[name].join(frames, lead)

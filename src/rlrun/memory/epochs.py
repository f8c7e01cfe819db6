"""Rows that are served several times over."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.memory.episodes import map_tree
from rlrun.typing import Array, Batch, Tree


class Epochs:
    """Serve windows of rows in shuffled minibatches, every window once an epoch; of `state` each one's first row.

    Args:
        minibatch: rows of one; they are made equal, so with a remainder they are a little larger.
        epochs: how often each row is served.
        length: rows of a window.
        stride: how far apart the rows of a window lie.
        generator: shuffles.
    """

    def __init__(
        self, *, minibatch: int, epochs: int, length: int = 1, stride: int = 1, generator: np.random.Generator
    ) -> None:
        self.minibatch = minibatch
        self.epochs = epochs
        self.length = length
        self.stride = stride
        self.generator = generator
        self.epoch, self.served = epochs, 0  # epochs that are over, and minibatches of the running one
        self.number = 0  # minibatches since the beginning
        self.rows: Batch = {}  # [rows, …]
        self.starts = np.empty(0, np.int64)  # first row of each window, in the order of this epoch
        self._whole: Batch | None = None  # all of them, where that is one minibatch

    @property
    def over(self) -> bool:
        """Tell whether there is nothing left to serve."""
        return self.epoch >= self.epochs

    def begin(self, rows: Batch, starts: Array) -> None:
        """Serve these rows from here on, in windows that begin at `starts`."""
        self.rows, self.starts = rows, starts
        self.epoch = self.served = self.number = 0
        self._whole = None
        self._shuffle()

    def end(self) -> None:
        """Leave the rest out."""
        self.epoch, self.served = self.epochs, 0
        self.rows, self._whole = {}, None

    def next(self) -> Batch:
        """Return the next minibatch [B, …], or [B, length, …] for windows; one that is all rows is taken once."""
        windows, count = len(self.starts), self._count
        first, end = (number * windows // count for number in (self.served, self.served + 1))
        batch = self._whole or self._taken(self.starts[first:end])
        if count == 1:
            self._whole = batch
        self.served += 1
        self.number += 1
        if self.served == count:
            self.epoch, self.served = self.epoch + 1, 0
            if self.over:
                self.end()
            else:
                self._shuffle()
        return dict(batch)

    @property
    def _count(self) -> int:
        """Minibatches an epoch; each holds a window, also where that has more rows than a minibatch."""
        windows = len(self.starts)
        return max(min(windows, windows * self.length // self.minibatch), 1)

    def _shuffle(self) -> None:
        if self._count > 1:  # a single minibatch has the same mean in any order
            self.generator.shuffle(self.starts)

    def _taken(self, starts: Array) -> Batch:
        """Return the windows that begin at these rows."""
        rows = starts
        if self.length > 1:
            rows = rows[:, None] + np.arange(self.length) * self.stride
        return {
            name: map_tree(partial(_take, starts if name == "state" else rows), tree)
            for name, tree in self.rows.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """Return what is left to serve; the generator's state is its owner's."""
        counted = {"epoch": self.epoch, "served": self.served, "number": self.number}
        return {**counted, "rows": self.rows, "starts": self.starts}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Go on with the minibatch after the last one."""
        self.epoch, self.served, self.number = state["epoch"], state["served"], state["number"]
        self.rows = map_tree(lambda value: value.to(device), state["rows"])
        self.starts, self._whole = np.array(state["starts"]), None


def _take(rows: Array, value: Tensor) -> Tensor:
    if value.device.type == "cpu":  # numpy takes half the time; the rows are right, "clip" spares it their check
        return torch.from_numpy(value.numpy().take(rows, axis=0, mode="clip"))
    index = torch.from_numpy(rows).to(value.device)
    return value.index_select(0, index.flatten()).view(*rows.shape, *value.shape[1:])


def joined(trees: Sequence[Tree]) -> Tree:
    """Return trees of tensors one behind the other."""
    if isinstance(trees[0], dict):
        return {name: joined([tree[name] for tree in trees]) for name in trees[0]}
    return torch.cat(list(trees))

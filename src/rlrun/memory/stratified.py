"""Batches spread evenly over lanes and over each lane's rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlrun.generators import put_back
from rlrun.memory.samplers import Rows, Sampler
from rlrun.typing import Array


class Stratified(Sampler):
    """The same number of windows from every lane that has any, each lane's spread evenly over its windows.

    What is left over goes to lanes drawn at random. A lane's n windows are drawn one from each n-th of all it has,
    so every window of a lane is equally likely, and a batch never bunches.
    """

    def __init__(self, *, seed: int = 0) -> None:
        self.generator = np.random.Generator(np.random.PCG64(seed))

    def pick(self, count: int, length: int) -> Rows:
        index, windows = self.index, self.index.windows(length)
        present = np.flatnonzero(windows)
        if not len(present):
            raise self.none(count, length)
        # episodes lane by lane; the windows of a lane are numbers that follow one another
        lanes = index.lane[present]
        order = present[np.argsort(lanes, kind="stable")]
        behind = windows[order].cumsum()
        total = np.bincount(lanes, windows[present], index.num_envs).astype(np.int64)
        lane, part = self._parts(np.flatnonzero(total), count)
        number = (total.cumsum() - total)[lane] + (part * total[lane]).astype(np.int64)
        chosen = np.searchsorted(behind, number, side="right")
        episode = order[chosen]
        return self.rows(index.window(episode, number - behind[chosen] + windows[episode]), length)

    def _parts(self, lanes: Array, count: int) -> tuple[Array, Array]:
        """Return the lane of each window, and how far through the lane's windows it lies, 0 … 1: [count]."""
        shares = np.full(len(lanes), count // len(lanes))
        shares[self.generator.permutation(len(lanes))[: count % len(lanes)]] += 1
        within = np.arange(count) - np.repeat(shares.cumsum() - shares, shares)
        part = (within + self.generator.random(count)) / np.repeat(shares, shares)
        return np.repeat(lanes, shares), np.minimum(part, np.nextafter(1.0, 0.0))

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        put_back(self.generator, state["generator"])

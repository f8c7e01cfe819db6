"""What a table holds, what was sampled of it, and how long that took, as metrics."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from rlrun.memory.index import OPEN, EpisodeIndex
from rlrun.memory.samplers import Rows

EVERY = 64  # samples between two that are timed: reading the clock at each would show
PARTS = 4  # of the table by age, whose shares of the samples are reported


class Clock:
    """Times the parts of one sample."""

    def __init__(self, times: dict[str, float]) -> None:
        self.times = times
        self._last = time.perf_counter()

    def lap(self, part: str) -> None:
        """Note the time since the last note."""
        now = time.perf_counter()
        self.times[part], self._last = now - self._last, now


class Reports:
    """Keeps the newest times, and reads the rest off the index when it is asked for."""

    def __init__(self, index: EpisodeIndex) -> None:
        self.index = index
        self.times: dict[str, float] = {}
        self.samples = 0

    def clock(self) -> Clock | None:
        """Return what times this sample, for one in so many; None for the others."""
        self.samples += 1
        return None if self.samples % EVERY else Clock(self.times)

    def metrics(self, picked: Rows | None) -> dict[str, Any]:
        """Return fill, episodes, lengths, ages in rows of a lane, and seconds a part of a sample takes."""
        index = self.index
        windows = index.windows(1)
        filled = windows > 0
        over = filled & (index.status != OPEN)
        rows = int(windows.sum())
        metrics: dict[str, Any] = {
            "memory/rows": rows,
            "memory/fill": rows / (index.size - index.num_envs),
            "memory/episodes": int(np.count_nonzero(filled)),
        }
        if index.min_length > 1:
            metrics["memory/too_short"] = index.too_short
        if over.any():
            metrics["memory/episode_length"] = float(windows[over].mean())
        if picked is not None:
            metrics |= self._ages(picked)
        return metrics | {f"time/memory_{part}_seconds": value for part, value in self.times.items()}

    def _ages(self, picked: Rows) -> dict[str, float]:
        """Return how old the rows of a sample are, and which share comes from each part of the table by age."""
        start = picked.start
        age = self.index.age(start[self.index.stamp[start] >= 0])
        if not len(age):
            return {}
        oldest = max(min(int(self.index.written.max()), self.index.size // self.index.num_envs), 1)
        share = np.bincount(np.minimum(age * PARTS // oldest, PARTS - 1), minlength=PARTS) / len(age)
        names = (f"memory/sampled_share_{part + 1}_of_{PARTS}" for part in range(PARTS))  # the newest first
        return {"memory/sampled_age": float(age.mean()), **dict(zip(names, share.tolist(), strict=True))}

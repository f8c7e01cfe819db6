"""A limit: one row of float32 a transition, gathered whole; nothing is split into fields."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.rivals.case import COUNT, EPISODE, Call, Case, Episode

PACKAGE = "numpy"
LACKS = {"prioritized": "no priorities", "images": "a row would be 226 KB"}


def insert(case: Case, episode: Episode) -> Call:
    """Write an episode, step by step, rows as they are."""
    rows = _rows(case, episode)
    steps = [rows[step * case.envs : (step + 1) * case.envs].copy() for step in range(EPISODE)]
    position = 0

    def write() -> None:
        nonlocal position
        for step in steps:
            rows[position : position + case.envs] = step
            position = (position + case.envs) % (len(rows) - case.envs)

    return write


def sample(case: Case, episode: Episode) -> Call:
    """Gather rows."""
    rows = _rows(case, episode)
    generator, steps = np.random.default_rng(0), np.arange(case.length)
    size = case.capacity - case.length

    def call() -> torch.Tensor:
        slots = generator.integers(0, size, COUNT)
        if case.length > 1:
            slots = slots[:, None] + steps
        return torch.from_numpy(rows.take(slots, axis=0, mode="clip"))

    return call


def _rows(case: Case, episode: Episode) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Return the packed transitions, [slots, numbers]."""
    parts = [value.reshape(len(value), -1).astype(np.float32) for value in episode.flat().values()]
    rows = np.concatenate(parts, axis=1)
    return np.resize(rows, (case.capacity, rows.shape[1]))


CALLS = {"insert": insert, "sample": sample, "sequence": sample}

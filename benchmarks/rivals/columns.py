"""A limit: an array a column, each gathered by itself; observations and their successors in one array."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.rivals.case import COUNT, EPISODE, Array, Call, Case, Episode

PACKAGE = "numpy"
LACKS = {"prioritized": "no priorities"}


def insert(case: Case, episode: Episode) -> Call:
    """Write an episode, step by step, each column of all envs at once."""
    columns = _full(case, episode)
    steps = [[getattr(episode, name)[step] for name in columns] for step in range(EPISODE)]
    arrays, position = list(columns.values()), 0

    def write() -> None:
        nonlocal position
        for step in steps:
            for array, value in zip(arrays, step, strict=True):
                array[position] = value
            position = (position + 1) % len(arrays[0])

    return write


def sample(case: Case, episode: Episode) -> Call:
    """Gather each column, and the observations a slot further on."""
    columns = {name: array[:, 0] for name, array in _full(case, episode).items()}
    generator, steps = np.random.default_rng(0), np.arange(case.length)
    size = case.capacity - case.length

    def call() -> list[torch.Tensor]:
        slots = generator.integers(0, size, COUNT)
        if case.length > 1:
            slots = slots[:, None] + steps
        tensors = [torch.from_numpy(array.take(slots, axis=0, mode="clip")) for array in columns.values()]
        return [*tensors, torch.from_numpy(columns["observation"].take(slots + 1, axis=0, mode="clip"))]

    return call


def _full(case: Case, episode: Episode) -> dict[str, Array]:
    """Return the columns, [slots, N, …]."""
    size, fields = case.capacity // case.envs, episode._asdict()
    return {name: np.resize(value, (size, *value.shape[1:])) for name, value in fields.items()}


CALLS = {"insert": insert, "sample": sample, "sequence": sample}

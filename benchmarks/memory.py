"""The replay memory alone: microseconds a call and thousands of transitions a second, the best of five."""

from __future__ import annotations

import timeit
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from rlrun.memory import NStep, Table
from rlrun.typing import Array

CAPACITY = 1_000_000
EPISODE = 200


def make_table(size: int, *, num_envs: int = 1, adaptors: tuple[NStep, ...] = ()) -> Table:
    """Return a table with observations of `size` numbers, an action of one, reward, terminated, truncated."""
    columns: dict[str, dict[str, object]] = {"observation": {"shape": (size,)}, "action": {"shape": (1,)}, "reward": {}}
    columns |= {"terminated": {"dtype": "bool"}, "truncated": {"dtype": "bool"}}
    return Table(length=CAPACITY, num_envs=num_envs, columns=columns, adaptors=adaptors)


def make_row(size: int, *, num_envs: int = 1) -> dict[str, Array]:
    """Return one step of every lane."""
    ended = np.zeros(num_envs, bool)
    row = {"observation": np.ones((num_envs, size), np.float32), "action": np.ones((num_envs, 1), np.float32)}
    return row | {"reward": np.ones(num_envs, np.float32), "terminated": ended, "truncated": ended}


def fill(table: Table, size: int) -> Table:
    """Write until every lane's ring is full, in episodes of 200 steps."""
    row = make_row(size, num_envs=table.index.num_envs)
    while not table.full():
        for _ in range(EPISODE):
            table.add(None, row)
        table.close(None, row["observation"])
    return table


def time_of(call: Callable[[], object], *, transitions: int, repeat: int = 2_000) -> dict[str, float]:
    """Time a call that moves so many transitions."""
    seconds = min(timeit.repeat(call, number=repeat, repeat=5)) / repeat
    return {"microseconds": seconds * 1e6, "thousands": transitions / seconds / 1e3}


def measure(size: int = 4) -> dict[str, dict[str, float]]:
    """Time inserts and samples, with observations of `size` numbers; tables are full before."""
    torch.set_num_threads(1)
    single, many = make_table(size), make_table(size, num_envs=64)
    ahead = make_table(size, adaptors=(NStep(steps=3, discount=0.99),))
    row, rows = make_row(size), make_row(size, num_envs=64)
    for table in (single, many, ahead):
        fill(table, size)
    found = {
        "insert 1": time_of(lambda: single.add(None, row), transitions=1, repeat=20_000),
        "insert 64 lanes": time_of(lambda: many.add(None, rows), transitions=64, repeat=10_000),
        "close 1": time_of(lambda: single.close(None, row["observation"]), transitions=1),
    }
    fill(single := make_table(size), size)  # inserts without an end have left a single episode
    samples = {
        "sample 256": (single, 1, 2_000),
        "sample 256, 64 lanes": (many, 1, 2_000),
        "sample 256, 3 steps ahead": (ahead, 1, 2_000),
        "sample 256 sequences of 8": (single, 8, 500),
        "sample 256 sequences of 50": (single, 50, 100),
    }
    for name, (table, length, repeat) in samples.items():
        call = partial(table.sample, 256, length)
        found[name] = time_of(call, transitions=256 * length, repeat=repeat)
    return found

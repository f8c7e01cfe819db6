"""Measure the replay memory: python benchmarks/memory.py [observation size].

Prints microseconds a call and thousands of transitions a second, one thread, the best of five.
"""

from __future__ import annotations

import sys
import timeit
from collections.abc import Callable

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


def report(name: str, call: Callable[[], object], *, transitions: int, repeat: int = 2_000) -> None:
    """Time a call and print a line."""
    seconds = min(timeit.repeat(call, number=repeat, repeat=5)) / repeat
    print(f"{name:<24}{seconds * 1e6:>10.2f} us{transitions / seconds / 1e3:>12,.0f} k/s")


def main(size: int) -> None:
    """Time inserts and samples as in the table of the documentation."""
    torch.set_num_threads(1)
    single, many = make_table(size), make_table(size, num_envs=64)
    ahead = make_table(size, adaptors=(NStep(steps=3, discount=0.99),))
    row, rows = make_row(size), make_row(size, num_envs=64)
    for table in (single, many, ahead):
        fill(table, size)
    report("insert1", lambda: single.add(None, row), transitions=1, repeat=20_000)
    report("insert64", lambda: many.add(None, rows), transitions=64, repeat=10_000)
    report("close1", lambda: single.close(None, row["observation"]), transitions=1)
    fill(single := make_table(size), size)
    report("sample256", lambda: single.sample(256), transitions=256)
    report("sample256_64env", lambda: many.sample(256), transitions=256)
    report("sample256_3step", lambda: ahead.sample(256), transitions=256)
    report("seq8", lambda: single.sample(256, 8), transitions=256 * 8, repeat=500)
    report("seq50", lambda: single.sample(256, 50), transitions=256 * 50, repeat=100)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4)

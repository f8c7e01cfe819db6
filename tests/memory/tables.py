"""Tables whose observations and rewards count, all samplers and ejectors, and a test of frequencies."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rlrun.collect import Collector, RandomAgent
from rlrun.core.spaces import Spaces
from rlrun.env import make
from rlrun.memory import Fifo, Table, Uniform
from rlrun.memory.table.coverage_samplers import Coverage, Sequential, Stratified
from rlrun.memory.table.ejectors import CoverageEjector, UniformEjector
from rlrun.memory.table.prioritized import Prioritized
from rlrun.memory.table.recent_sampler import Recent
from rlrun.memory.table.samplers import Sampler

COLUMNS = {"observation": {"dtype": "int64"}, "reward": {"dtype": "int64"}}
FLAGS = {"terminated": {"dtype": "bool"}, "truncated": {"dtype": "bool"}}
STEP = {"reward": {}, **FLAGS}
SAMPLERS: dict[str, Callable[[int], Sampler]] = {  # by seed
    "uniform": lambda seed: Uniform(seed=seed),
    "uniform by episodes": lambda seed: Uniform(seed=seed, weighting="episodes"),
    "prioritized": lambda seed: Prioritized(seed=seed),
    "coverage": lambda seed: Coverage(seed=seed),
    "recent": lambda seed: Recent(Uniform(seed=seed), share=0.3, newest=6, seed=seed),
    "recent and coverage": lambda seed: Recent(Coverage(seed=seed), share=0.3, newest=6, seed=seed),
    "recent and prioritized": lambda seed: Recent(Prioritized(seed=seed), share=0.3, newest=6, seed=seed),
    "stratified": lambda seed: Stratified(seed=seed),
    "sequential": lambda seed: Sequential(seed=seed),
    "sequential in order": lambda seed: Sequential(random_offset=False, seed=seed),
    "sequential windows": lambda seed: Sequential(per_episode=False, seed=seed),
    "sequential windows in order": lambda seed: Sequential(per_episode=False, random_offset=False, seed=seed),
}
EJECTORS: dict[str, Callable[[int], Any]] = {
    "fifo by rows": lambda seed: Fifo(),
    "fifo": lambda seed: Fifo(whole=True),
    "uniform": lambda seed: UniformEjector(seed=seed),
    "coverage": lambda seed: CoverageEjector(seed=seed),
}


def add_steps(
    table: Table, count: int, row: Callable[[int], Any], *, end: str | None = None, last: Any = None, tags: Any = None
) -> Table:
    """Add the rows of steps 0, 1, … of every env, and close their episodes if there is a last observation.

    end: the flag of the newest row, terminated or truncated.
    """
    for step in range(count):
        over = np.full(table.index.num_envs, step == count - 1)
        table.add(None, {**{flag: over & (end == flag) for flag in FLAGS}, **row(step)})
    if last is not None:
        table.close(None, last, tags)
    return table


def episode(table: Table, rows: int, first: int, env_index: int = 0, *, over: bool = True) -> None:
    """Add an episode whose observations are first, first + 1, …"""
    for number in range(first, first + rows):
        table.add(env_index, {"observation": [number], "reward": [number]})
    if over:
        table.close(env_index, [first + rows])


def fill(table: Table, lengths: list[int]) -> Table:
    """Add episodes of so many rows; episode e is in env e % num_envs, and its observations begin at 100 e."""
    for number, rows in enumerate(lengths):
        episode(table, rows, 100 * number, number % table.index.num_envs)
    return table


def starts(table: Table, count: int, length: int = 1) -> np.ndarray:
    """Return the first reward of each window of a sample."""
    return table.sample(count, length)["reward"].numpy().reshape(count, -1)[:, 0]


def store_random(path: Path, *, steps: int = 60, **which: Any) -> Spaces:
    """Store what a random agent did in the environment that `make` gives; return its spaces."""
    env = make(**which)
    table = Table(spaces=env.spaces, length=500)
    collector = Collector(env, RandomAgent(env.spaces.action, seed=1), table)
    collector.begin_training()
    collector.collect(steps)
    table.store(path)
    env.close()
    return env.spaces


def counted(rows: list[int], drawn: np.ndarray) -> np.ndarray:
    """Return how often each of some rows was drawn; no other one was."""
    numbers, times = np.unique(drawn, return_counts=True)
    assert set(numbers.tolist()) <= set(rows)
    return np.array([dict(zip(numbers.tolist(), times.tolist(), strict=True)).get(row, 0) for row in rows])


def assert_as_expected(counts: np.ndarray, weights: Any) -> None:
    """Chi-square for chances in proportion to weights, at the level 0.001, by Wilson and Hilferty."""
    expected = np.asarray(weights) / np.sum(weights) * counts.sum()
    freedom = len(counts) - 1
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert statistic < freedom * (1 - 2 / (9 * freedom) + 3.09 * (2 / (9 * freedom)) ** 0.5) ** 3

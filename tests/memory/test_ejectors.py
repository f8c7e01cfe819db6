"""Which episodes leave a table, and how likely."""

from typing import Any

import numpy as np
import pytest

from rlrun.memory import Fifo, Table
from rlrun.memory.table.ejectors import CoverageEjector, Ejector, UniformEjector
from rlrun.memory.table.index import CLOSED

from .tables import COLUMNS, EJECTORS, assert_as_expected, episode, fill


def table_of(ejector: Ejector, lengths: list[int], length: int = 200) -> Table:
    return fill(Table(length=length, columns=COLUMNS, ejector=ejector), lengths)


def picked(table: Table, count: int) -> list[int]:
    """Return the episodes of `fill` that the ejector picks."""
    index = table.index
    numbers = table.ejector.pick(count)
    first = index.at(numbers, index.oldest()[numbers])
    return (table.storage.arrays["observation"][first] // 100).tolist()


@pytest.mark.parametrize("name", ["fifo", "uniform", "coverage"])
def test_unservable_episodes_leave(name: str) -> None:
    columns = COLUMNS | {"observation": {"dtype": "int64", "shape": 4}}
    table = Table(length=4, num_envs=4, columns=columns, ejector=EJECTORS[name](0), frame_stack=4)
    for step in range(60):  # 2 slots an env: whatever was there for long has lost its frames
        table.add(None, {"observation": np.zeros((4, 4)), "reward": np.zeros(4)})
        if step % 5 == 4:
            table.close(step // 5 % 4, np.zeros((1, 4)))
    assert int((table.index.status == CLOSED).sum()) <= 4


def test_first_in_is_first_out() -> None:
    table = table_of(Fifo(whole=True), [5, 5, 5, 5])
    assert picked(table, 7) == [0, 1]


def test_uniform_draws_by_length() -> None:
    lengths = [2, 5, 11, 1]
    table = table_of(UniformEjector(), lengths)
    counts = np.bincount([picked(table, 1)[0] for _ in range(3000)], minlength=4)
    assert_as_expected(counts, np.array(lengths) + 1)


def test_episodes_are_drawn_without_replacement() -> None:
    table = table_of(UniformEjector(), [1, 1, 4])  # 2, 2 and 5 slots of 9; 3 slots take the last or any two
    pairs = [tuple(picked(table, 3)) for _ in range(4000)]
    chances = {(2,): 5 / 9, (0, 1): 2 / 9 * 2 / 7, (1, 0): 2 / 9 * 2 / 7, (0, 2): 2 / 9 * 5 / 7, (1, 2): 2 / 9 * 5 / 7}
    assert_as_expected(np.array([pairs.count(p) for p in chances]), list(chances.values()))


def test_coverage_drops_what_was_sampled_most() -> None:
    ejector = CoverageEjector(alpha=1.0)
    table = table_of(ejector, [4, 4, 4])
    table.sample(1)
    ejector.visits[table.index.episode(np.array([0, 5, 10]))] = 3, 7, 4  # weights 1, 5 and 2
    counts = np.bincount([picked(table, 1)[0] for _ in range(3000)], minlength=3)
    assert_as_expected(counts, [1, 5, 2])


def test_coverage_counts_one_for_each_window() -> None:
    ejector = CoverageEjector()
    table = table_of(ejector, [10, 10])
    first = table.sample(30, 4)["reward"][:, 0].numpy()
    again = table.sample(20)["reward"].numpy()
    came = np.bincount(np.concatenate([first, again]) // 100, minlength=2)
    numbers = table.index.episode(np.array([0, 11]))
    assert ejector.visits[numbers].tolist() == came.tolist()


def test_ejected_episodes_are_forgotten() -> None:
    ejector = CoverageEjector(alpha=30.0)  # in effect the most sampled one
    table = table_of(ejector, [], length=32)
    for number in range(60):
        episode(table, 6, 100 * number)
        table.sample(50)
    assert int(ejector.visits.sum()) <= 50 * 60
    assert set(np.flatnonzero(ejector.visits)) <= set(np.flatnonzero(table.index.alive()))


def test_seed_decides_who_leaves() -> None:
    def picks(seed: int) -> list[Any]:
        table = table_of(UniformEjector(seed=seed), [3] * 12)
        return [picked(table, 20) for _ in range(3)]

    assert picks(1) == picks(1) != picks(2)

"""Sums by slot, and the slots that shares of them fall to."""

import numpy as np
import pytest

from rlrun.memory.prioritized import SumTree

RANDOM_OPERATIONS = 4_000
SIZES = (1, 15, 16, 17, 255, 256, 257, 3000)


def tree_of(values: np.ndarray) -> SumTree:
    tree = SumTree(len(values))
    tree.set(slice(0, len(values)), values)
    return tree


def change(tree: SumTree, values: np.ndarray, generator: np.random.Generator) -> None:
    """Set some numbers in one of the ways there are; half of them to zero."""
    size = len(values)
    slots = generator.integers(0, size, generator.integers(1, 40))
    fresh = generator.exponential(size=len(slots)) ** 4 * generator.integers(0, 2, len(slots))
    kind = generator.integers(4)
    if kind == 0:
        tree.set(slots, 2.5)
        values[slots] = 2.5
    elif kind == 1:
        begin, end = np.sort(generator.choice(size + 1, 2, replace=False))
        tree.set(slice(begin, end), float(fresh[0]))
        values[begin:end] = fresh[0]
    else:
        tree.set(slots, fresh)
        for slot, value in zip(slots, fresh, strict=True):  # the last counts
            values[slot] = value


@pytest.mark.parametrize("size", SIZES)
def test_tree_agrees_with_plain_arrays(size):
    generator = np.random.default_rng(size)
    tree, values = SumTree(size), np.zeros(size)
    for _ in range(RANDOM_OPERATIONS // len(SIZES)):
        change(tree, values, generator)
        assert np.array_equal(tree.get(np.arange(size)), values)
        assert tree.total == pytest.approx(values.sum(), rel=1e-12)
        prefix = generator.random(3) * tree.total
        if tree.total > 0:
            assert tree.find(prefix).tolist() == values.cumsum().searchsorted(prefix, "right").tolist()


@pytest.mark.parametrize("size", SIZES)
def test_slots_of_zero_are_not_found(size):
    values = np.zeros(size)
    values[size // 2] = 3.0
    prefix = np.array([0.0, 1e-300, 1.5, np.nextafter(3.0, 0.0)])
    assert (tree_of(values).find(prefix) == size // 2).all()


def test_sums_do_not_drift():
    generator = np.random.default_rng(0)
    tree = tree_of(generator.random(2000))
    for scale in np.geomspace(1e-9, 1e9, 3000):
        tree.set(generator.integers(0, 2000, 20), scale * generator.random(20))
        assert tree.total > 0
    values = generator.random(2000)
    tree.set(np.arange(0, 2000, 2), values[::2])
    tree.set(np.arange(1, 2000, 2), values[1::2])
    assert tree.total == tree_of(values).total  # to the bit

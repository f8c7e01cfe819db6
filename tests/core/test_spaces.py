"""Spaces without any environment library."""

import numpy as np
import pytest

from rlrun.core.errors import SpaceError
from rlrun.core.spaces import (
    Box,
    Composite,
    Discrete,
    MultiDiscrete,
    Spaces,
    describe,
    leaves,
    leaves_of,
    require_discrete,
    tree_of,
)


def box(low, high, dtype="float32"):
    return Box(np.shape(low), np.array(low, dtype), np.array(high, dtype), dtype)


NESTED = Composite({"a": Discrete(4, start=2), "b": Composite({"0": box([0.0], [1.0]), "1": Discrete(2)})})


@pytest.mark.parametrize(("low", "high", "bounded"), [(-1, 1, True), (-np.inf, 1, False), (0, np.inf, False)])
def test_one_missing_bound_makes_a_box_unbounded(low, high, bounded):
    assert box([0.0, low], [1.0, high]).bounded is bounded


def test_choices_are_listed_decision_by_decision():
    space = MultiDiscrete(np.array([[2, 3], [4, 5]]), np.zeros((2, 2), np.int64))
    assert (space.shape, space.size, space.choices) == ((2, 2), 14, (2, 3, 4, 5))
    assert (Discrete(4, start=2).choices, Discrete(4, start=2).size) == ((4,), 4)


def test_leaves_are_walked_by_path():
    assert [path for path, _ in leaves(NESTED)] == ["a", "b.0", "b.1"]
    assert [path for path, _ in leaves(Discrete(2))] == [""]
    assert NESTED.size == 4 + 1 + 2
    tree = {"b": {"1": 3, "0": 2}, "a": 1}
    assert leaves_of(NESTED, tree) == [1, 2, 3]
    assert tree_of(NESTED, [1, 2, 3]) == tree


@pytest.mark.parametrize(
    ("shape", "dtype", "image"),
    [
        ((84, 84), "uint8", True),
        ((84, 84, 3), "uint8", True),
        ((4, 84, 84), "uint8", True),
        ((8, 8, 1), "uint8", True),
        ((7, 84), "uint8", False),
        ((128,), "uint8", False),
        ((84, 84, 3), "float32", True),
        ((84, 84), "float32", False),
    ],
)
def test_pixels_are_told_from_numbers(shape, dtype, image):
    assert Box(shape, np.zeros(shape), np.full(shape, 255), dtype).image is image


def test_spaces_are_described_in_words():
    assert describe(NESTED) == "{a: Discrete(4), b: {0: Box[1] float32, 1: Discrete(2)}}"
    assert describe(MultiDiscrete(np.array([2, 3]), np.zeros(2))) == "MultiDiscrete([2, 3])"


def test_continuous_parts_are_refused_by_path():
    require_discrete(Composite({"a": Discrete(2), "b": MultiDiscrete(np.array([2]), np.zeros(1))}), "DQN")
    with pytest.raises(SpaceError, match=r"^DQN handles discrete actions only; action part 'b\.0' is Box\[1\] float32"):
        require_discrete(NESTED, "DQN")
    with pytest.raises(SpaceError, match="the action space is Box"):
        require_discrete(Spaces(NESTED, box([0.0], [1.0])).action, "DQN")

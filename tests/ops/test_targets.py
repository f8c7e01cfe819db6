import math

import numpy as np
import pytest
import torch

from rlrun.core.spaces import Box
from rlrun.ops import bootstrap, distance, error_size, lerp_, target_entropy

BOX4 = Box((4,), np.full(4, -3, np.float32), np.full(4, 3, np.float32))


@pytest.mark.parametrize("value", [4.0, math.inf])  # of the terminated step, whatever it is
def test_terminated_step_does_not_bootstrap(value):
    terminated = torch.tensor([False, True])
    target = bootstrap(torch.tensor([1.0, 2.0]), discount=0.5, terminated=terminated, value=torch.tensor([4.0, value]))
    assert target.tolist() == [3.0, 2.0]


def test_each_row_may_have_its_discount():
    target = bootstrap(
        torch.zeros(2), discount=torch.tensor([0.5, 0.25]), terminated=torch.zeros(2).bool(), value=torch.ones(3, 2)
    )
    assert target.tolist() == [[0.5, 0.25]] * 3


def test_target_entropy_is_of_normalized_actions():
    assert target_entropy(BOX4) == pytest.approx((-6.437752, 0.0), abs=1e-5)


def test_tensors_move_by_tau():
    slow, fast = [torch.tensor([0.0, 4.0]), torch.tensor(1.0)], [torch.tensor([1.0, 0.0]), torch.tensor(3.0)]
    lerp_(slow, fast, rate=0.25)
    assert slow[0].tolist() == [0.25, 3.0]
    assert float(slow[1]) == 1.5


def test_huber_is_square_then_straight():
    error = torch.tensor([0.5, -1.0, -3.0, 3.0])
    zero = torch.zeros(())
    assert distance(error, zero, huber=1.0).tolist() == [0.125, 0.5, 2.5, 2.5]
    assert distance(error, zero, huber=2.0).tolist() == [0.125, 0.5, 4.0, 4.0]
    assert distance(error, zero).tolist() == error.square().tolist()


@pytest.mark.parametrize("huber", [None, 0.1, 1.0, 30.0])
def test_error_size_undoes_distance(huber):
    difference = torch.tensor([[0.0, 0.05, -0.1, 1.0], [-2.0, 20.0, -30.0, 500.0]])
    torch.testing.assert_close(
        error_size(distance(difference, torch.zeros(4), huber=huber), huber=huber), difference.abs()
    )

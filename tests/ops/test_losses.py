"""Losses, and the errors behind them."""

from __future__ import annotations

import pytest
import torch

from rlrun import ops


@pytest.mark.parametrize(("huber", "expected"), [(None, [0.25, 9.0]), (1.0, [0.125, 2.5]), (4.0, [0.125, 4.5])])
def test_distance_is_a_square_or_hubers(huber, expected):
    assert ops.distance(torch.tensor([0.5, -2.0]), torch.tensor([0.0, 1.0]), huber=huber).tolist() == expected


@pytest.mark.parametrize("huber", [None, 0.1, 1.0, 30.0])
def test_error_size_undoes_distance(huber):
    difference = torch.tensor([[0.0, 0.05, -0.1, 1.0], [-2.0, 20.0, -30.0, 500.0]])
    sizes = ops.error_size(ops.distance(difference, torch.zeros(4), huber=huber), huber=huber)
    torch.testing.assert_close(sizes, difference.abs())

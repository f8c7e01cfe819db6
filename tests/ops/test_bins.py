"""Targets spread over bins, worked by hand."""

import math
from itertools import pairwise

import pytest
import torch

from rlrun import ops


def normal(x):
    """Return the share of a standard normal distribution below x."""
    return 0.5 * (1.0 + math.erf(x / math.sqrt(2.0)))


def spread(*targets, count=4, deviation=0.5):
    return ops.smoothed_bins(torch.tensor(targets), count, least=0.0, largest=4.0, deviation=deviation)


def test_bins_share_the_gaussian():
    below = [normal((edge - 1.5) / 0.5) for edge in range(5)]
    wanted = [(b - a) / (below[4] - below[0]) for a, b in pairwise(below)]
    assert spread(1.5)[0].tolist() == pytest.approx(wanted, abs=1e-6)


def test_targets_beyond_count_as_ends():
    probabilities = spread(-7.0, 0.0, 4.0, 99.0)
    assert torch.equal(probabilities[0], probabilities[1])
    assert torch.equal(probabilities[2], probabilities[3])
    torch.testing.assert_close(probabilities[0].flip(0), probabilities[3])


def test_mean_of_bins_is_the_target():
    targets = torch.linspace(-50.0, 60.0, 23, dtype=torch.float64)
    spread = ops.smoothed_bins(targets, 101, least=-101.0, largest=101.0, deviation=1.5)
    centres = ops.bin_centres(101, least=-101.0, largest=101.0, like=targets)
    assert centres[[0, 50, 100]].tolist() == pytest.approx([-100.0, 0.0, 100.0])
    torch.testing.assert_close(spread @ centres, targets, atol=2e-2, rtol=0)
    torch.testing.assert_close(spread.sum(-1), torch.ones_like(targets))

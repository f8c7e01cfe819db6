"""Quantile losses, and targets spread over bins, worked by hand."""

import math
from itertools import pairwise

import pytest
import torch

from rlrun import ops

HALVES = torch.tensor([0.25, 0.75])


def distance(value, target, **options):
    return ops.quantile_distance(torch.tensor(value), torch.tensor(target), **{"points": HALVES, **options})


def test_two_quantiles_against_two_targets():
    # u = (2, 1) for both targets; h = (1.5, 0.5); shares (.25, .75): each pair .375
    value, target = [0.0, 1.0], [2.0, 2.0]
    assert float(distance(value, target)) == pytest.approx(0.375, abs=1e-5)
    assert float(distance(value, target, summed=True)) == pytest.approx(0.75, abs=1e-5)


def test_targets_below_have_another_share():
    # u = (-3, -4), (1, 0), (0, -1): h = (2.5, 3.5), (.5, 0), (0, .5); shares .75 or .25 below, .25 or .75 above
    loss = distance([1.0, 2.0], [-2.0, 2.0, 1.0])
    assert float(loss) == pytest.approx((1.875 + 0.875 + 0.125 + 0.0 + 0.0 + 0.125) / 6, abs=1e-5)


@pytest.mark.parametrize(("huber", "sizes"), [(None, (2.0, 0.5)), (0.5, (1.75, 0.25)), (4.0, (0.5, 0.03125))])
def test_huber_slopes_are_at_most_one(huber, sizes):
    loss = distance([0.0, 1.5], [2.0], huber=huber)
    assert float(loss) == pytest.approx((0.25 * sizes[0] + 0.75 * sizes[1]) / 2, abs=1e-5)


def test_targets_weigh_by_their_shares():
    # the pairs of target 2 come to .375 each, those of target 0: u = (0, -1), h = (0, .5), share .25: 0 and .125
    loss = distance([0.0, 1.0], [2.0, 0.0], widths=torch.tensor([0.9, 0.1]))
    assert float(loss) == pytest.approx((0.9 * 0.375 + 0.9 * 0.375 + 0.1 * 0.125) / 2, abs=1e-5)


def test_members_and_rewards_are_compared_separately():
    torch.manual_seed(0)
    value, target, points = torch.randn(3, 5, 2, 8), torch.randn(5, 2, 4), torch.rand(5, 2, 8)
    loss = ops.quantile_distance(value, target, points=points)  # three members, five rows, two rewards
    assert loss.shape == (3, 5, 2)
    alone = ops.quantile_distance(value[1, 2, 1], target[2, 1], points=points[2, 1])
    torch.testing.assert_close(loss[1, 2, 1], alone)


def test_gradient_vanishes_where_quantiles_are_right():
    draws = torch.linspace(0.0, 1.0, 100_001, dtype=torch.float64)
    value = ops.fixed_fractions(4, like=draws).points.requires_grad_()
    ops.quantile_distance(value, draws, points=value.detach(), huber=None).backward()
    assert value.grad.abs().max() < 1e-5


def test_fixed_fractions_halve_equal_shares():
    points, widths = ops.fixed_fractions(4, like=torch.zeros(1))
    assert points.tolist() == [0.125, 0.375, 0.625, 0.875]
    assert widths.tolist() == [0.25] * 4


def test_sampled_fractions_halve_their_shares(monkeypatch):
    monkeypatch.setattr(torch, "rand", lambda shape, **_: torch.tensor([0.0, 0.4, 0.2]).expand(shape))
    points, widths = ops.sampled_fractions((2,), 3, like=torch.zeros(1))  # .1, .5, .3 over .9
    assert widths[1].tolist() == pytest.approx([1 / 9, 5 / 9, 3 / 9])
    assert points[1].tolist() == pytest.approx([0.5 / 9, 3.5 / 9, 7.5 / 9])


@pytest.mark.parametrize("by", ops.LEAST)
def test_a_single_member_is_the_least(by):
    assert ops.least_of(torch.tensor([[[1.0, 5.0]]]), by=by).tolist() == [[1.0, 5.0]]


# --- bins


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

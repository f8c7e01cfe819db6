"""Intervals are as wide as the distribution says, which is integrated here."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlrun.collect.evaluate import mean_interval, quantile


def likely(bound, freedom, parts=2_000_000):
    """Return how likely |t| < bound is, by the density."""
    t = (np.arange(parts) + 0.5) * bound / parts
    height = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    return float(2 * height * ((1 + t**2 / freedom) ** (-(freedom + 1) / 2)).sum() * bound / parts)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 19, 100, 1001])
def test_quantile_holds_95_percent(freedom):
    assert likely(quantile(freedom), freedom) == pytest.approx(0.95, abs=1e-7)


def test_interval_has_standard_errors():
    low, high = mean_interval([1.0, 2.0, 6.0])
    error = math.sqrt((4 + 1 + 9) / 2 / 3)
    assert ((low + high) / 2, (high - low) / 2) == pytest.approx((3.0, quantile(2) * error))
    assert mean_interval([4.0, 4.0]) == (4.0, 4.0)


@pytest.mark.parametrize("numbers", [[], [1.0], [1.0, math.nan], [1.0, math.inf]])
def test_unknown_spread_has_no_interval(numbers):
    assert mean_interval(numbers) is None

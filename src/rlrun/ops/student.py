"""Confidence intervals of a mean by Student's t distribution, without tables."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

CERTAINTY = 0.95
HALVINGS = 60  # more change no digit


def mean_interval(numbers: Sequence[float]) -> tuple[float, float] | None:
    """Return the interval in which the mean of all numbers lies in 95 of 100 cases, if they are about normal.

    None where there is no telling: of fewer than two, or where one is not finite.
    """
    count = len(numbers)
    if count < 2 or not np.isfinite(numbers).all():
        return None
    mean, error = float(np.mean(numbers)), float(np.std(numbers, ddof=1)) / math.sqrt(count)
    within = error * quantile(count - 1)
    return mean - within, mean + within


def quantile(freedom: int) -> float:
    """Return how many standard errors the interval reaches to either side; freedom: numbers less one, at least 1."""
    low, high = 0.0, math.pi / 2.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if _inside(middle, freedom) < CERTAINTY else (low, middle)
    return math.tan(low) * math.sqrt(freedom)


def _inside(angle: float, freedom: int) -> float:
    """Return how likely |t| < tan(angle) · √freedom is: Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    odd, cosine = freedom % 2, math.cos(angle)
    k = np.arange(1, freedom // 2)
    series = 1.0 + float(np.cumprod((2 * k - 1 + odd) / (2 * k + odd) * cosine**2).sum()) if freedom > 1 else 0.0
    total = math.sin(angle) * cosine**odd * series
    return (angle + total) * 2.0 / math.pi if odd else total

"""Losses of single numbers."""

from __future__ import annotations

from torch import Tensor


def huber(error: Tensor, *, delta: float = 1.0) -> Tensor:
    """Return half the square of each error up to `delta`, a straight line of slope `delta` beyond."""
    size = error.abs()
    inner = size.clamp(max=delta)
    return inner * (size - 0.5 * inner)

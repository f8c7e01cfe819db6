"""Numbers and intervals as people read them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from rlrun.files import counted
from rlrun.reporting.statistics import Interval

NONE = "—"


def number(value: float | None, size: float | None = None) -> str:
    """Return a number with three to five digits that say something.

    size: of the largest of several numbers that are written alike.
    """
    if value is None or not math.isfinite(value):
        return NONE
    size = round(abs(value) if size is None else size, 3)
    if size >= 1e7 or (size == 0 and value != 0):
        text = f"{value:.3g}"
    else:
        text = f"{value:,.{0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 1 else 3}f}"
    return text.replace("-", "−").replace("e+", "e")


def interval(estimate: Interval) -> str:
    """Return `12.3 [10.1, 14.0]`; one without bounds says so."""
    if not math.isfinite(estimate.low):
        return f"{number(estimate.value)} (no interval)"
    size = max(map(abs, estimate))
    value, low, high = (number(part, size) for part in estimate)
    return f"{value} [{low}, {high}]"


def whole(value: float) -> str:
    """Return a count."""
    return f"{value:,.0f}" if abs(value) < 1e15 else number(value)


def between(values: Iterable[float], write: Callable[[float], str]) -> str:
    """Return `2,900 to 3,100`; one number where all are the same to the digits shown."""
    known = sorted(values)
    return " to ".join(dict.fromkeys(write(value) for value in (known[0], known[-1]))) if known else NONE


def span(counts: Iterable[int], what: str) -> str:
    """Return `5 runs`, or `3 to 5 runs`."""
    low, high = min(values := list(counts)), max(values)
    return counted(high, what) if low == high else f"{low} to {counted(high, what)}"


def chance(p: float) -> str:
    """Return a p value."""
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"

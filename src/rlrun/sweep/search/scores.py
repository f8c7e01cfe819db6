"""From what a run wrote down to one number."""

from __future__ import annotations

import json
import math
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from rlrun.errors import RlrunError
from rlrun.files import known, open_regular
from rlrun.rundir import RunDir
from rlrun.watching import progress, record_of

PIECE = 1 << 20  # bytes that are read at a time
SAMPLES = 10_000  # of a bootstrap
SURE = 0.95  # how often an interval holds the mean


def values_of(path: Path, name: str) -> list[float]:
    """Return the values of a metric in a run's `metrics.jsonl` so far, which may be absent; NaN where one was none."""
    values, quoted = [], json.dumps(name).encode()
    with suppress(RlrunError), os.fdopen(open_regular(path), "rb") as file:
        while (line := file.readline(PIECE)).endswith(b"\n"):  # else it is being written, or none of ours
            record = (record_of(line) or {}) if quoted in line else {}
            if name in record:
                values.append(float(record[name]) if _is_number(record[name]) else math.nan)
    return values


def names(run: RunDir) -> set[str]:
    """Return what numbers a run has, but for metrics that it wrote early and never again."""
    return {name for name, value in known(run.summary).items() if _is_number(value)} | set(progress(run.metrics))


def of_run(run: RunDir, name: str, score: str, *, highest: bool) -> float:
    """Return what a completed run came to; NaN where it has no such number.

    Args:
        run: its directory.
        name: a number of `summary.json`, or a metric.
        score: `mean`, `last` or `best` of the metric's values.
        highest: whether the largest is the best.
    """
    value = known(run.summary).get(name)
    if _is_number(value):
        return float(value)
    return of_values(values_of(run.metrics, name), score, highest=highest)


def of_values(values: list[float], score: str, *, highest: bool) -> float:
    """Return the `mean`, `last` or `best` of a metric's values; NaN where one is none."""
    if not values or any(map(math.isnan, values)):
        return math.nan
    if score == "last":
        return values[-1]
    return (max(values) if highest else min(values)) if score == "best" else sum(values) / len(values)


def over_seeds(values: list[float], how: str, *, highest: bool) -> float:
    """Return the `mean`, `iqm` (mean of the middle half) or `worst` of what a trial's runs came to."""
    if any(map(math.isnan, values)):
        return math.nan
    if how == "worst":
        return min(values) if highest else max(values)
    if how == "iqm":
        places = np.arange(len(values))
        weights = np.clip(np.minimum(places + 1, len(values) - places) - len(values) / 4, 0.0, 1.0)
        return float(np.average(np.sort(values), weights=weights))
    return sum(values) / len(values)


def interval(values: list[float]) -> list[float] | None:
    """Return between which bounds the mean lies with 95 %, by a bootstrap; None of a single value."""
    if len(values) < 2:
        return None
    drawn = np.random.default_rng(0).choice(values, (SAMPLES, len(values))).mean(1)
    return [float(bound) for bound in np.quantile(drawn, [(1 - SURE) / 2, (1 + SURE) / 2])]


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)

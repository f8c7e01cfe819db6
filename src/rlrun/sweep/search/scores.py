"""From what a run wrote down to one number."""

from __future__ import annotations

import math
import os
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


class Follower:
    """The values of a metric in a run's `metrics.jsonl`, of which each call reads only what is new.

    Args:
        path: of the file; it may be absent still, and a run that goes on may make it shorter first.
        name: of the metric.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name
        self._values: list[float] = []
        self._at = 0  # bytes that were read
        self._last = b""  # line of them

    def read(self) -> list[float]:
        """Return all values so far; NaN where one was none."""
        try:
            handle = open_regular(self.path)
        except RlrunError:
            return []
        with os.fdopen(handle, "rb") as file:
            file.seek(self._at - len(self._last))
            if file.read(len(self._last)) != self._last:  # a run that goes on has cut the file, and written anew
                self._values, self._at, self._last = [], 0, b""
                file.seek(0)
            while line := file.readline(PIECE):
                if not line.endswith(b"\n"):  # being written, or none of ours
                    break
                self._at, self._last = self._at + len(line), line
                self._take(line)
        return list(self._values)

    def _take(self, line: bytes) -> None:
        record = record_of(line) or {}
        if self.name in record:
            value = record[self.name]
            self._values.append(float(value) if _is_number(value) else math.nan)


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
    return of_values(Follower(run.metrics, name).read(), score, highest=highest)


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

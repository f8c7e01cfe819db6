"""Learning curves of several runs on a common grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from rlrun.reporting.arms import Arm
from rlrun.reporting.runs import Curve
from rlrun.reporting.statistics import Floats, Indices, Interval, bands

POINTS = 100  # of a grid, at most


Bounds: TypeAlias = tuple[float, float]
AS_IT_IS: Bounds = (0.0, 1.0)


class Curves(NamedTuple):
    """Curves of one task, or of several together.

    Attributes:
        grid: environment steps, or updates without an environment, [P].
        bands: interquartile mean and interval of each arm, [P] each; NaN where one of the tasks has no run.
        runs: how many runs each arm has at each point, [P].
        axis: what the grid counts.
    """

    grid: Floats
    bands: Mapping[str, Interval]
    runs: Mapping[str, Indices]
    axis: str


def normalised(values: Any, bounds: Bounds) -> Any:
    """Return values on a scale on which the bounds are 0 and 1."""
    low, high = bounds
    return (values - low) / (high - low if high > low else 1.0)


def curves_of(
    arms: Sequence[Arm], tasks: Mapping[str, Bounds], metric: str, *, resamples: int, seed: int
) -> Curves | None:
    """Return the curves of all runs that were measured, also of those that do not count in the end; None without any.

    Between two measurements of a run its curve is a straight line. Nothing is made up before the first one and after
    the last one, but for half a step of the grid, because runs are measured at slightly different steps.

    Args:
        arms: whose.
        tasks: which, and what counts as 0 and 1 there.
        metric: what is drawn.
        resamples: of the bootstrap.
        seed: of the same.
    """
    fates = {arm.label: [fate for fate in arm.fates if fate.drawn and fate.run.task in tasks] for arm in arms}
    every = [fate.run for group in fates.values() for fate in group]
    if not every:
        return None
    grid = _grid([run.curves[metric] for run in every])
    intervals, runs, names = {}, {}, list(tasks)
    for label, group in fates.items():
        if group:
            rows = [normalised(_on(grid, fate.run.curves[metric]), tasks[fate.run.task]) for fate in group]
            runs[label] = np.isfinite(rows).sum(0)
            places = np.array([names.index(fate.run.task) for fate in group])
            intervals[label] = _bands(np.array(rows), places, len(names), resamples=resamples, seed=seed)
    return Curves(grid, intervals, runs, "environment steps" if any(run.env_steps for run in every) else "updates")


def _grid(curves: Sequence[Curve]) -> Floats:
    first, last = min(next(iter(curve)) for curve in curves), max(next(reversed(curve)) for curve in curves)
    return np.linspace(first, last, min(POINTS, max(map(len, curves))) if last > first else 1)


def _on(grid: Floats, curve: Curve) -> Floats:
    steps, values = np.array(list(curve)), np.array(list(curve.values()))
    slack = (grid[1] - grid[0]) / 2 if len(grid) > 1 else 0.0
    inside = (grid >= steps[0] - slack) & (grid <= steps[-1] + slack)
    return np.where(inside, np.interp(grid, steps, values), np.nan)


def _bands(values: Floats, places: Indices, tasks: int, *, resamples: int, seed: int) -> Interval:
    """Return the bands of curves that do not all reach everywhere, [n, P]; points with the same runs go together."""
    estimates = np.full((3, values.shape[1]), np.nan)
    present = np.isfinite(values)
    for pattern in np.unique(present, axis=1).T:
        if len(np.unique(places[pattern])) == tasks:
            points = (present == pattern[:, None]).all(0)
            part = values[np.ix_(pattern, points)]
            estimates[:, points] = bands(part, places[pattern], resamples=resamples, seed=seed)
    return Interval(*estimates)

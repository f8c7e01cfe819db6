"""Aggregates of few runs with confidence intervals, as rliable defines them (Agarwal et al. 2021), in numpy.

Scores of M tasks form one flat array, run by run: first run of task 0, …, first run of task M-1, second run of
task 0, …; tasks may have different numbers of runs. A bootstrap draws runs within each task (stratified). It uses
`numpy.random.RandomState`, which numpy never changes: a seed always gives the same interval. If all tasks have equally
many runs, results equal rliable's. A resample is represented by the number of times that it contains each score.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Indices: TypeAlias = NDArray[np.intp]

CERTAINTY = 0.95  # confidence level of all intervals
AT_ONCE = 1 << 21  # most numbers that are drawn at a time


class Interval(NamedTuple):
    """An estimate with its percentile interval; the bounds are NaN if a task has only one run.

    For a profile or a curve, all three are arrays.
    """

    value: Any
    low: Any
    high: Any


@dataclass(frozen=True)
class Scores:
    """Scores of one group, [C], and the index of each score's task, [C]."""

    values: Floats
    tasks: Indices

    @classmethod
    def of(cls, columns: Sequence[Sequence[float]]) -> Scores:
        """Join the scores of all tasks; each task has at least one."""
        cells = [(run, task) for task, column in enumerate(columns) for run in range(len(column))]
        cells.sort()
        values = np.array([columns[task][run] for run, task in cells], dtype=np.float64)
        return cls(values, np.array([task for _, task in cells], dtype=np.intp))

    @property
    def counts(self) -> Indices:
        """Number of runs of each task, [M]."""
        return np.bincount(self.tasks).astype(np.intp)

    @property
    def weights(self) -> Floats:
        """The share of each score in the mean of the tasks' means, [C]."""
        return np.asarray(1.0 / (len(self.counts) * self.counts[self.tasks]))


Statistic: TypeAlias = Callable[[Floats, Scores], Floats]  # counts of each score, [B, C] -> [B] or [B, T]


def iqm(times: Floats, scores: Scores) -> Floats:
    """Return the mean of the middle half of all scores: a quarter, rounded down, is cut off at each end."""
    order, count = np.argsort(scores.values), round(float(times[0].sum()))
    reached, cut = np.cumsum(times[:, order], axis=1), count // 4
    weights = np.diff(np.clip(reached, cut, count - cut), axis=1, prepend=cut)
    return np.asarray(weights @ scores.values[order] / (count - 2 * cut))


def mean(times: Floats, scores: Scores) -> Floats:
    """Return the mean over tasks of the mean over runs."""
    return np.asarray(times @ (scores.weights * scores.values))


def median(times: Floats, scores: Scores) -> Floats:
    """Return the median over tasks of the mean over runs."""
    means = [
        times[:, in_task] @ scores.values[in_task] / in_task.sum()
        for in_task in (scores.tasks == np.arange(len(scores.counts))[:, None])
    ]
    return np.asarray(np.median(means, axis=0))


def optimality_gap(times: Floats, scores: Scores) -> Floats:
    """Return the mean distance of scores to 1; a score above 1 counts as 1."""
    return np.asarray(1.0 - times @ np.minimum(scores.values, 1.0) / len(scores.values))


def shares(thresholds: Floats, *, lower: bool = False) -> Statistic:
    """Return the statistic of a performance profile: the share of all runs that score above each threshold, [T].

    lower: count scores below each threshold instead.
    """
    sign = -1.0 if lower else 1.0
    return lambda times, scores: times @ (sign * scores.values[:, None] > sign * thresholds) / len(scores.values)


def estimate(statistics: Mapping[str, Statistic], scores: Scores, *, resamples: int, seed: int) -> dict[str, Interval]:
    """Return the statistics of scores by name, with intervals."""

    def results(times: Floats) -> list[Floats]:
        return [statistic(times, scores) for statistic in statistics.values()]

    return dict(zip(statistics, _bootstrap(results, scores.tasks, resamples=resamples, seed=seed), strict=True))


def compare(
    left: Scores, right: Scores, *, resamples: int, seed: int, lower: bool = False
) -> tuple[Interval, Interval]:
    """Return the interquartile mean of `left` minus that of `right`, and the probability of improvement.

    The latter is the probability that a run of `left` scores higher (with `lower`: lower) than a run of `right` on the
    same task. Ties count half, and tasks are averaged: this is Mann and Whitney's statistic, divided by the number of
    pairs. Groups are resampled independently.
    """
    wins = 0.5 * (1.0 + (-1.0 if lower else 1.0) * np.sign(left.values[:, None] - right.values))
    wins *= left.tasks[:, None] == right.tasks
    wins *= left.weights[:, None] * right.weights * len(left.counts)  # share of each pair of runs, [C, C']

    def results(times: Floats) -> list[Floats]:
        left_times, right_times = np.split(times, [len(left.values)], axis=1)
        return [iqm(left_times, left) - iqm(right_times, right), ((left_times @ wins) * right_times).sum(1)]

    tasks = np.concatenate([left.tasks, right.tasks + len(left.counts)])
    gap, improvement = _bootstrap(results, tasks, resamples=resamples, seed=seed)
    return gap, improvement


def permutation(left: Scores, right: Scores, *, resamples: int, seed: int) -> float:
    """Return the p value of a two-sided permutation test of the difference of interquartile means.

    If the groups were the same, all assignments of a task's runs to them would be equally likely, so runs are shuffled
    within each task. The observed assignment counts as one of them, so the result is never 0.
    """
    pooled = Scores(np.concatenate([left.values, right.values]), np.concatenate([left.tasks, right.tasks]))
    starts = np.cumsum(pooled.counts) - pooled.counts
    places = np.concatenate([start + np.arange(count) for start, count in zip(starts, left.counts, strict=True)])

    def gap(assigned: Floats) -> Floats:
        return np.abs(iqm(assigned, pooled) - iqm(1.0 - assigned, pooled))

    observed = gap((np.arange(len(pooled.values)) < len(left.values)).astype(np.float64)[None])[0]
    nearly = observed - 1e-9 * (1.0 + np.abs(pooled.values).max())  # allows for rounding of sums in another order
    random, reached = np.random.RandomState(seed), 0
    for rows in _rows(resamples, len(pooled.values)):
        order = np.argsort(pooled.tasks + random.random_sample((rows, len(pooled.values))), axis=1)  # task by task
        assigned = np.zeros(order.shape)
        np.put_along_axis(assigned, order[:, places], 1.0, axis=1)
        reached += int((gap(assigned) >= nearly).sum())
    return (1 + reached) / (1 + resamples)


def holm(chances: Sequence[float], family: int) -> list[float]:
    """Return p values corrected for multiple comparisons by Holm's method.

    family: total number of comparisons, at least the number of p values.
    """
    corrected, largest = [0.0] * len(chances), 0.0
    for rank, place in enumerate(sorted(range(len(chances)), key=lambda place: chances[place])):
        largest = max(largest, min(1.0, chances[place] * (family - rank)))
        corrected[place] = largest
    return corrected


def bands(values: Floats, tasks: Indices, *, resamples: int, seed: int) -> Interval:
    """Return the interquartile mean of curves [n, P] at each of P points, with its interval.

    tasks: index of each run's task, [n].
    """
    points = [Scores(point, tasks) for point in values.T]
    intervals = _bootstrap(lambda times: [iqm(times, point) for point in points], tasks, resamples=resamples, seed=seed)
    return Interval(*np.transpose(intervals))


def _bootstrap(
    statistic: Callable[[Floats], list[Floats]], tasks: Indices, *, resamples: int, seed: int
) -> list[Interval]:
    """Return the results of a statistic with percentiles over resamples, drawn within each task.

    Args:
        statistic: counts of each score, [B, C] -> results, each [B] or [B, T].
        tasks: index of each score's task, [C].
        resamples: number of resamples.
        seed: of the generator.
    """
    drawn = _times(tasks, resamples, seed) if np.bincount(tasks).min() > 1 else iter(())
    samples = [statistic(times) for times in drawn]
    edge, intervals = 50.0 * (1.0 - CERTAINTY), []
    for place, (value,) in enumerate(statistic(np.ones((1, len(tasks))))):
        bounds = np.full((2, *np.shape(value)), np.nan)
        if samples:
            parts = np.concatenate([results[place] for results in samples])
            bounds = np.percentile(parts, [edge, 100.0 - edge], axis=0)
        intervals.append(Interval(value, *bounds))
    return intervals


def _rows(resamples: int, cells: int) -> Iterator[int]:
    """Yield sizes of parts of the resamples that fit into memory."""
    most = max(1, AT_ONCE // cells)
    for start in range(0, resamples, most):
        yield min(most, resamples - start)


def _times(tasks: Indices, resamples: int, seed: int) -> Iterator[Floats]:
    """Yield the counts of each score in each resample, [B, C]; each task keeps its number of runs."""
    counts, cells = np.bincount(tasks), len(tasks)
    members = np.zeros((len(counts), counts.max()), dtype=np.intp)
    for task in range(len(counts)):
        members[task, : counts[task]] = np.flatnonzero(tasks == task)
    most = counts[0] if (counts == counts[0]).all() else counts[tasks]  # draws the same; a scalar is faster
    random = np.random.RandomState(seed)
    for rows in _rows(resamples, cells):
        drawn = members[tasks, random.randint(0, most, size=(rows, cells))]
        places = np.arange(rows)[:, None] * cells + drawn
        yield np.bincount(places.ravel(), minlength=rows * cells).reshape(rows, cells).astype(np.float64)

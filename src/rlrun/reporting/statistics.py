"""Aggregates of few runs, with honest intervals: as rliable defines them (Agarwal et al. 2021), in numpy.

Scores of M tasks stand in one flat array, run by run: first run of task 0, …, first run of task M-1, second run of
task 0, …; a task may have fewer runs than another. A bootstrap draws runs within each task (stratified), with the
frozen generator `numpy.random.RandomState`: the same seed gives the same interval for ever, and where all tasks have
as many runs, the very numbers of rliable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Indices: TypeAlias = NDArray[np.intp]

CERTAINTY = 0.95  # of every interval
AT_ONCE = 1 << 21  # numbers that are drawn at a time


class Interval(NamedTuple):
    """An estimate and its percentile interval; bounds are NaN where a task has one run, which says nothing of others.

    Of a profile or a curve the three are arrays.
    """

    value: Any
    low: Any
    high: Any


@dataclass(frozen=True)
class Scores:
    """Scores of one arm, [C], and the task of each, [C], counted from 0."""

    values: Floats
    tasks: Indices

    @classmethod
    def of(cls, columns: Sequence[Sequence[float]]) -> Scores:
        """Join the scores of each task, at least one a task."""
        cells = [(run, task) for task, column in enumerate(columns) for run in range(len(column))]
        cells.sort()
        values = np.array([columns[task][run] for run, task in cells], dtype=np.float64)
        return cls(values, np.array([task for _, task in cells], dtype=np.intp))

    @property
    def counts(self) -> Indices:
        """Runs of each task, [M]."""
        return np.bincount(self.tasks).astype(np.intp)

    @property
    def weights(self) -> Floats:
        """The share of each score in the mean of the tasks' means, [C]."""
        return np.asarray(1.0 / (len(self.counts) * self.counts[self.tasks]))

    def column(self, task: int) -> Floats:
        """Return the scores of one task."""
        return np.asarray(self.values[self.tasks == task])


Statistic: TypeAlias = Callable[[Floats, Scores], Floats]  # values of resamples, [B, C], and whose -> [B] or [B, T]


def iqm(values: Floats, scores: Scores | None = None) -> Floats:
    """Return the mean of the middle half along the last axis: a quarter, rounded down, is cut off at each end."""
    count = values.shape[-1]
    cut = count // 4
    kept = np.partition(values, (cut, count - cut - 1), axis=-1)[..., cut : count - cut]
    return np.asarray(kept.mean(-1))


def mean(values: Floats, scores: Scores) -> Floats:
    """Return the mean over tasks of the mean over runs."""
    return np.asarray(values @ scores.weights)


def median(values: Floats, scores: Scores) -> Floats:
    """Return the median over tasks of the mean over runs."""
    tasks = range(len(scores.counts))
    return np.asarray(np.median([values[..., scores.tasks == task].mean(-1) for task in tasks], axis=0))


def optimality_gap(values: Floats, scores: Scores) -> Floats:
    """Return how much is missing to 1 on average, a score above 1 counting as 1."""
    return np.asarray(1.0 - np.minimum(values, 1.0).mean(-1))


def estimate(statistic: Statistic, scores: Scores, *, resamples: int, seed: int) -> Interval:
    """Return a statistic of scores and its interval by the stratified bootstrap."""
    value = statistic(scores.values[None], scores)[0]
    if scores.counts.min() < 2:
        return Interval(value, np.full_like(value, np.nan), np.full_like(value, np.nan))
    found = [statistic(scores.values[drawn], scores) for drawn in _draws(scores.tasks, resamples, seed)]
    return Interval(value, *_percentiles(np.concatenate(found)))


def profile(scores: Scores, thresholds: Floats, *, resamples: int, seed: int) -> Interval:
    """Return which share of all runs scores above each threshold, [T], with intervals of each point by itself."""
    return estimate(lambda values, _: _shares(values, thresholds), scores, resamples=resamples, seed=seed)


def improvement(one: Scores, other: Scores, *, resamples: int, seed: int) -> Interval:
    """Return the probability that a run of `one` beats a run of `other` on a task, ties counting half; mean over tasks.

    It is the statistic of Mann and Whitney, divided by the number of pairs.
    """
    pairs = _wins(one, other)
    value = float(pairs.sum())
    if min(one.counts.min(), other.counts.min()) < 2:
        return Interval(value, math.nan, math.nan)
    found = []
    for drawn, opposed in _independent(one, other, resamples, seed):
        times, against = _times(drawn, len(one.values)), _times(opposed, len(other.values))
        found.append(((times @ pairs) * against).sum(1))
    return Interval(value, *_percentiles(np.concatenate(found)))


def difference(one: Scores, other: Scores, *, resamples: int, seed: int) -> Interval:
    """Return the interquartile mean of `one` less that of `other`, both resampled independently."""
    value = float(iqm(one.values) - iqm(other.values))
    if min(one.counts.min(), other.counts.min()) < 2:
        return Interval(value, math.nan, math.nan)
    found = [
        iqm(one.values[drawn]) - iqm(other.values[opposed])
        for drawn, opposed in _independent(one, other, resamples, seed)
    ]
    return Interval(value, *_percentiles(np.concatenate(found)))


def permutation(one: Scores, other: Scores, *, resamples: int, seed: int) -> float:
    """Return how often chance alone makes the interquartile means differ by as much as they do, in either direction.

    If the arms were the same, any assignment of a task's runs to them would have been as likely: runs are shuffled
    within each task. What was observed counts as one of the assignments, so the result is never 0.
    """
    values, tasks = np.concatenate([one.values, other.values]), np.concatenate([one.tasks, other.tasks])
    first, order = len(one.values), np.argsort(tasks, kind="stable")
    observed = abs(float(iqm(one.values) - iqm(other.values)))
    nearly = observed - 1e-9 * (1.0 + np.abs(values).max())  # sums in another order differ by less
    random, reached = np.random.RandomState(seed), 0
    for rows in _rows(resamples, len(values)):
        shuffled = np.empty((rows, len(values)))
        keys = tasks[order] + random.random_sample((rows, len(values)))  # sorted, tasks stay where they are
        shuffled[:, order] = values[order][np.argsort(keys, axis=1)]
        gaps = iqm(shuffled[:, :first]) - iqm(shuffled[:, first:])
        reached += int((np.abs(gaps) >= nearly).sum())
    return (1 + reached) / (1 + resamples)


def least_p(one: Scores, other: Scores) -> float:
    """Return the smallest p that a permutation test of so many runs can come to."""
    ways = math.prod(math.comb(int(a + b), int(a)) for a, b in zip(one.counts, other.counts, strict=True))
    return min(1.0, (2 if np.array_equal(one.counts, other.counts) else 1) / ways)


def holm(chances: Sequence[float], family: int) -> list[float]:
    """Return p values corrected for how many comparisons there are, by Holm's steps.

    family: number of comparisons that could have been shown, at least as many as there are.
    """
    corrected, largest = [0.0] * len(chances), 0.0
    for rank, place in enumerate(sorted(range(len(chances)), key=lambda place: chances[place])):
        largest = max(largest, min(1.0, chances[place] * (family - rank)))
        corrected[place] = largest
    return corrected


def bands(values: Floats, tasks: Indices, *, resamples: int, seed: int) -> Interval:
    """Return the interquartile mean at each of P points of the curves of n runs, [n, P], with its interval there.

    tasks: of each run, [n], counted from 0.
    """
    value = iqm(values.T)
    if np.bincount(tasks).min() < 2:
        return Interval(value, np.full_like(value, np.nan), np.full_like(value, np.nan))
    drawn = np.concatenate(list(_draws(tasks, resamples, seed)))
    bounds = [_percentiles(iqm(point[drawn])) for point in values.T]
    return Interval(value, *np.array(bounds).T)


def _percentiles(found: Floats) -> tuple[Any, Any]:
    edge = 50.0 * (1.0 - CERTAINTY)
    low, high = np.percentile(found, [edge, 100.0 - edge], axis=0)
    return low, high


def _shares(values: Floats, thresholds: Floats) -> Floats:
    ordered = np.sort(values, axis=-1)
    above = [values.shape[-1] - np.searchsorted(row, thresholds, side="right") for row in ordered]
    return np.asarray(above) / values.shape[-1]


def _wins(one: Scores, other: Scores) -> Floats:
    """Return the share of each pair of runs in the probability of improvement, [C, C']; 0 across tasks."""
    gaps = one.values[:, None] - other.values[None]
    same = one.tasks[:, None] == other.tasks[None]
    shares = one.weights[:, None] * other.weights[None] * len(one.counts)
    return np.asarray(0.5 * (1.0 + np.sign(gaps)) * same * shares)


def _times(drawn: Indices, count: int) -> Floats:
    """Return how often each of `count` scores was drawn in each resample, [B, count]."""
    rows = len(drawn)
    places = np.arange(rows)[:, None] * count + drawn
    return np.asarray(np.bincount(places.ravel(), minlength=rows * count).reshape(rows, count), np.float64)


def _rows(resamples: int, cells: int) -> Iterator[int]:
    """Split resamples into parts that fit into memory."""
    most = max(1, AT_ONCE // cells)
    for start in range(0, resamples, most):
        yield min(most, resamples - start)


def _draws(tasks: Indices, resamples: int, seed: int) -> Iterator[Indices]:
    """Yield resamples, [B, C]: for each score another one of the same task."""
    counts = np.bincount(tasks)
    members = np.zeros((len(counts), counts.max()), dtype=np.intp)
    for task in range(len(counts)):
        members[task, : counts[task]] = np.flatnonzero(tasks == task)
    random = np.random.RandomState(seed)
    for rows in _rows(resamples, len(tasks)):
        yield members[tasks, random.randint(0, counts[tasks], size=(rows, len(tasks)))]


def _independent(one: Scores, other: Scores, resamples: int, seed: int) -> Iterator[tuple[Indices, Indices]]:
    """Yield resamples of two arms, drawn in turns."""
    first, tasks = len(one.values), len(one.counts)
    for drawn in _draws(np.concatenate([one.tasks, other.tasks + tasks]), resamples, seed):
        yield drawn[:, :first], drawn[:, first:] - first

"""All numbers of a report: final scores, their intervals, comparisons, curves, and what to know before using them."""

from __future__ import annotations

import math
import statistics as plain_statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import NamedTuple

import numpy as np

from rlrun.reporting import statistics
from rlrun.reporting.arms import Arm, differences
from rlrun.reporting.curves import AS_IT_IS, Bounds, Curves, curves_of, normalised
from rlrun.reporting.statistics import Floats, Interval, Scores

FEW = 5  # runs; below, percentile intervals are too narrow
DRAWN = 8  # arms of a figure at most
TOGETHER = "all tasks, normalised"
THRESHOLDS = 101  # of a performance profile
BAND_RESAMPLES = 2_000  # of curves and profiles, at most
LEVEL = 1.0 - statistics.CERTAINTY


class Options(NamedTuple):
    """What the user chose.

    Attributes:
        title: of the page.
        metric: whose last value is a run's score.
        resamples: of each bootstrap and permutation test.
        seed: of the same.
        bounds: of a task's scores, low and high, that count as 0 and 1.
    """

    title: str
    metric: str
    resamples: int
    seed: int
    bounds: Mapping[str, Bounds]


@dataclass(frozen=True)
class Result:
    """What came of an arm.

    Attributes:
        arm: its runs.
        scores: over the tasks that all arms have, normalised if `Findings.bounds` says so; None where it lacks one.
        aggregates: of these, by name.
        tasks: scores of each of its tasks as they are, with interquartile mean and mean.
        profile: share of runs above each of `Findings.thresholds`.
    """

    arm: Arm
    scores: Scores | None
    aggregates: Mapping[str, Interval]
    tasks: Mapping[str, tuple[Scores, Interval, Interval]]
    profile: Interval | None

    @property
    def order(self) -> float:
        """From the best; arms without scores come last."""
        return -float(self.aggregates["iqm"].value) if self.aggregates else np.inf


@dataclass(frozen=True)
class Comparison:
    """Two arms: the difference of their interquartile means, the probability that a run of the first scores higher.

    chance: p of the permutation test, corrected for the number of comparisons.
    least: the smallest that it could have been, so corrected.
    """

    one: str
    other: str
    difference: Interval
    improvement: Interval
    chance: float
    least: float

    @property
    def distinguishable(self) -> bool:
        """Whether the interval excludes 0, and chance alone seldom does as much; never so without an interval."""
        excluded = bool(self.difference.low > 0 or self.difference.high < 0)
        return excluded and self.chance < LEVEL

    @property
    def verdict(self) -> str:
        """Say it in words."""
        if not self.distinguishable:
            return "not distinguishable"
        return f"{self.one if self.difference.value > 0 else self.other} scores higher"


@dataclass(frozen=True)
class Findings:
    """All that a report shows.

    Attributes:
        options: what the user chose.
        results: of the arms, the best first.
        words: that all runs have in common.
        tasks: all, by name.
        common: tasks on which each arm has runs that count, but for arms without any.
        bounds: of each common task, which are 0 and 1 in aggregates; empty where scores stand as they are.
        thresholds: of performance profiles.
        comparisons: of each pair of drawn arms.
        curves: of each task, and normalised of the common tasks together, by title.
        differing: values of each drawn arm by the keys of the config in which they differ.
        troubles: what could not be read.
    """

    options: Options
    results: list[Result]
    words: list[str]
    tasks: list[str]
    common: list[str]
    bounds: Mapping[str, Bounds]
    thresholds: Floats
    comparisons: list[Comparison]
    curves: Mapping[str, Curves]
    differing: Mapping[str, list[str]]
    troubles: list[str] = field(default_factory=list)

    @property
    def drawn(self) -> list[Result]:
        """The arms of the figures."""
        return self.results[:DRAWN]

    @property
    def band_resamples(self) -> int:
        """Resamples of curves and profiles."""
        return min(self.options.resamples, BAND_RESAMPLES)

    @property
    def pairs(self) -> int:
        """Of all arms that have runs that count."""
        return math.comb(sum(bool(result.tasks) for result in self.results), 2)

    @property
    def apart(self) -> bool:
        """Whether scores by task say more than those of all tasks."""
        return bool(self.bounds) or self.tasks != self.common


def find(arms: Sequence[Arm], options: Options, *, words: Iterable[str] = (), troubles: Iterable[str] = ()) -> Findings:
    """Compute everything."""
    tasks = sorted({fate.run.task for arm in arms for fate in arm.fates})
    able = [arm for arm in arms if any(fate.score is not None for fate in arm.fates)]
    common = [task for task in tasks if able and all(arm.scores(task) for arm in able)]
    bounds = _bounds(arms, common, options)
    thresholds = _thresholds([_joined(arm, common, bounds) for arm in arms])
    results = sorted((_result(arm, common, bounds, thresholds, options) for arm in arms), key=lambda res: res.order)
    drawn = results[:DRAWN]
    return Findings(
        options=options,
        results=results,
        words=list(words),
        tasks=tasks,
        common=common,
        bounds=bounds,
        thresholds=thresholds,
        comparisons=_compare(drawn, math.comb(len(able), 2), options),
        curves=_curves([result.arm for result in drawn], tasks, bounds, options),
        differing=differences(result.arm for result in drawn),
        troubles=list(troubles),
    )


def _curves(
    arms: Sequence[Arm], tasks: Sequence[str], bounds: Mapping[str, Bounds], options: Options
) -> dict[str, Curves]:
    few = {"resamples": min(options.resamples, BAND_RESAMPLES), "seed": options.seed}
    wanted: dict[str, Mapping[str, Bounds]] = {task: {task: AS_IT_IS} for task in tasks}
    if len(bounds) > 1:
        wanted = {TOGETHER: bounds, **wanted}
    by_title = {title: curves_of(arms, task_bounds, options.metric, **few) for title, task_bounds in wanted.items()}
    return {title: curves for title, curves in by_title.items() if curves is not None}


def _bounds(arms: Iterable[Arm], common: Sequence[str], options: Options) -> dict[str, Bounds]:
    """Return what counts as 0 and 1 on each task: as the user says, else the extremes of all that was measured."""
    if len(common) < 2 and not set(common) & set(options.bounds):
        return {}
    bounds = {}
    for task in common:
        fates = [fate for arm in arms for fate in arm.fates if fate.run.task == task and fate.drawn]
        values = [value for fate in fates for value in fate.run.curves[options.metric].values()]
        bounds[task] = options.bounds.get(task, (min(values), max(values)))
    return bounds


def _joined(arm: Arm, common: Sequence[str], bounds: Mapping[str, Bounds]) -> Scores | None:
    columns = [arm.scores(task) for task in common]
    if not columns or not all(columns):
        return None
    if bounds:
        columns = [[normalised(score, bounds[task]) for score in arm.scores(task)] for task in common]
    return Scores.of(columns)


def _thresholds(joined: Iterable[Scores | None]) -> Floats:
    values = np.concatenate([scores.values for scores in joined if scores is not None] or [np.zeros(1)])
    return np.linspace(values.min(), values.max(), THRESHOLDS)


def _result(
    arm: Arm, common: Sequence[str], bounds: Mapping[str, Bounds], thresholds: Floats, options: Options
) -> Result:
    drawn = {"resamples": options.resamples, "seed": options.seed}
    few = {"resamples": min(options.resamples, BAND_RESAMPLES), "seed": options.seed}
    scores = _joined(arm, common, bounds)
    wanted = {"iqm": statistics.iqm, "mean": statistics.mean}
    beside = {"median": statistics.median, "optimality_gap": statistics.optimality_gap} if bounds else {}
    aggregates, profile = {}, None
    if scores is not None:
        aggregates = statistics.estimate({**wanted, **beside}, scores, **drawn)
        profile = statistics.estimate({"profile": statistics.shares(thresholds)}, scores, **few)["profile"]
    tasks = {}
    for task in dict.fromkeys(fate.run.task for fate in arm.fates if fate.score is not None):
        own = Scores.of([arm.scores(task)])
        alike = common == [task] and not bounds
        estimates = aggregates if alike else statistics.estimate(wanted, own, **drawn)
        tasks[task] = (own, estimates["iqm"], estimates["mean"])
    return Result(arm, scores, aggregates, tasks, profile)


def _compare(drawn: Sequence[Result], family: int, options: Options) -> list[Comparison]:
    """Compare each pair; p is corrected for as many as there are, also those that are not shown."""
    settings = {"resamples": options.resamples, "seed": options.seed}
    pairs = [
        (first.arm.label, first.scores, second.arm.label, second.scores)
        for first, second in combinations(drawn, 2)
        if first.scores is not None and second.scores is not None
    ]
    chances = [statistics.permutation(scores, opposed, **settings) for _, scores, _, opposed in pairs]
    corrected = statistics.holm(chances, family)
    return [
        Comparison(
            label,
            opponent,
            *statistics.compare(scores, opposed, **settings),
            chance,
            min(1.0, family * statistics.least_p(scores, opposed)),
        )
        for (label, scores, opponent, opposed), chance in zip(pairs, corrected, strict=True)
    ]


def middle(values: Iterable[float | None]) -> float | None:
    """Return the median of what is known."""
    known = [value for value in values if value is not None]
    return plain_statistics.median(known) if known else None

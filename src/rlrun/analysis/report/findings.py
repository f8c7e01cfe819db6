"""All numbers of a report: final scores with their intervals, comparisons, learning curves."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from rlrun.analysis.report import statistics
from rlrun.analysis.report.groups import Fate, Group, differences
from rlrun.analysis.report.runs import Curve
from rlrun.analysis.report.statistics import Floats, Indices, Interval, Scores

DRAWN = 8  # most groups in a figure
TOGETHER = "all tasks, normalized"
POINTS = 100  # most points of a curve
THRESHOLDS = 101  # number of thresholds of a performance profile
BAND_RESAMPLES = 2_000  # most resamples of curves and profiles
LEVEL = 1.0 - statistics.CERTAINTY
PLAIN = {"iqm": statistics.iqm, "mean": statistics.mean}
NORMALISED = {**PLAIN, "median": statistics.median, "optimality_gap": statistics.optimality_gap}

Bounds: TypeAlias = tuple[float, float]
AS_IT_IS: Bounds = (0.0, 1.0)


class ReportOptions(NamedTuple):
    """The options of a report."""

    title: str  # of the page
    metric: str  # its last value is a run's score
    resamples: int  # of each bootstrap and permutation test
    seed: int  # of bootstrap and permutation tests
    bounds: Mapping[str, Bounds]  # task -> low and high score, which count as 0 and 1
    lower: bool = False  # True if smaller scores are better

    @property
    def better(self) -> str:
        """Word for the better of two scores: `higher` or `lower`."""
        return "lower" if self.lower else "higher"

    @property
    def band_resamples(self) -> int:
        """Number of resamples for curves and profiles."""
        return min(self.resamples, BAND_RESAMPLES)


class Curves(NamedTuple):
    """Curves of one task, or of several together."""

    grid: Floats  # environment steps, or updates without an environment, [P]
    # Interquartile mean and interval of each group, [P] each; NaN where one of the tasks has no run:
    bands: Mapping[str, Interval]
    runs: Mapping[str, Indices]  # number of runs of each group at each point, [P]
    axis: str  # unit of the grid


@dataclass(frozen=True)
class GroupResult:
    """The scores of a group."""

    group: Group  # its runs
    # On the tasks that all groups have, normalized by `Findings.bounds`; None if the group lacks one:
    scores: Scores | None
    aggregates: Mapping[str, Interval]  # of these scores, by name
    # Scores of each of its tasks, not normalized, with interquartile mean and mean:
    tasks: Mapping[str, tuple[Scores, Interval, Interval]]
    profile: Interval | None  # share of runs above each of `Findings.thresholds`


@dataclass(frozen=True)
class Comparison:
    """Two groups with the difference of their interquartile means, and the probability that the first is better."""

    first: str
    second: str
    difference: Interval
    improvement: Interval
    chance: float  # p of the permutation test, corrected for the number of comparisons
    better: str = "higher"  # or lower

    @property
    def distinguishable(self) -> bool:
        """True if the interval excludes 0 and the permutation test is significant; False without an interval."""
        excluded = bool(self.difference.low > 0 or self.difference.high < 0)
        return excluded and self.chance < LEVEL

    @property
    def verdict(self) -> str:
        """The result in words."""
        if not self.distinguishable:
            return "not distinguishable"
        return f"{self.order[0]} scores {self.better}"

    @property
    def order(self) -> tuple[str, str]:
        """The better group, and the other one."""
        first = (self.difference.value > 0) == (self.better == "higher")
        return (self.first, self.second) if first else (self.second, self.first)


@dataclass(frozen=True)
class Findings:
    """All numbers that a report shows."""

    options: ReportOptions  # what the user chose
    results: list[GroupResult]  # of the groups, the best first; those without scores come last
    overrides: list[str]  # that all runs have in common
    tasks: list[str]  # all, by name
    common: list[str]  # tasks on which every group has runs that count, apart from groups without any
    # The scores of each common task that count as 0 and 1; empty if scores are not normalized:
    bounds: Mapping[str, Bounds]
    thresholds: Floats  # of performance profiles
    comparisons: list[Comparison]  # of each pair of drawn groups
    pairs: int  # number of pairs among all groups with runs that count
    curves: Mapping[str, Curves]  # title -> curves, of each task, and normalized of all common tasks together
    differing: Mapping[str, list[str]]  # config key in which groups differ -> value of each drawn group
    troubles: list[str]  # reading errors

    @property
    def drawn(self) -> list[GroupResult]:
        """The groups of the figures."""
        return self.results[:DRAWN]

    @property
    def fates(self) -> list[Fate]:
        """The fate of each run, group by group."""
        return [fate for result in self.results for fate in result.group.fates]

    @property
    def apart(self) -> bool:
        """True if a table by task would differ from the table of all tasks."""
        return bool(self.bounds) or self.tasks != self.common


def find(groups: Sequence[Group], options: ReportOptions, overrides: list[str], troubles: list[str]) -> Findings:
    """Compute all numbers of a report."""
    tasks = sorted({fate.run.task for group in groups for fate in group.fates})
    scored = [group for group in groups if any(fate.score is not None for fate in group.fates)]
    common = [task for task in tasks if scored and all(group.scores(task) for group in scored)]
    bounds = _bounds(groups, common, options)
    options = options._replace(lower=options.lower and not bounds)
    joined = [_joined(group, common, bounds) for group in groups]
    values = np.concatenate([scores.values for scores in joined if scores is not None] or [np.zeros(1)])
    thresholds = np.linspace(values.min(), values.max(), THRESHOLDS)
    results = [
        _result(group, scores, common, thresholds, options, normalized=bool(bounds))
        for group, scores in zip(groups, joined, strict=True)
    ]
    sign = 1.0 if options.lower else -1.0
    results.sort(key=lambda result: sign * result.aggregates["iqm"].value if result.aggregates else math.inf)
    drawn = [result.group for result in results[:DRAWN]]
    titles: dict[str, Mapping[str, Bounds]] = {TOGETHER: bounds} if len(bounds) > 1 else {}
    titles |= {task: {task: AS_IT_IS} for task in tasks}
    curves = {title: _curves(drawn, task_bounds, options) for title, task_bounds in titles.items()}
    pairs = math.comb(len(scored), 2)
    return Findings(
        options=options,
        results=results,
        overrides=overrides,
        tasks=tasks,
        common=common,
        bounds=bounds,
        thresholds=thresholds,
        comparisons=_compare(results[:DRAWN], pairs, options),
        pairs=pairs,
        curves={title: of_tasks for title, of_tasks in curves.items() if of_tasks is not None},
        differing=differences(drawn),
        troubles=troubles,
    )


def _normalized(values: Any, bounds: Bounds) -> Any:
    """Return values scaled linearly so that the bounds become 0 and 1."""
    low, high = bounds
    return (values - low) / (high - low or 1.0)


def _bounds(groups: Iterable[Group], common: Sequence[str], options: ReportOptions) -> dict[str, Bounds]:
    """Return the scores that count as 0 and 1 on each task: the user's bounds, or the measured extremes."""
    if len(common) < 2 and not set(common) & set(options.bounds):
        return {}
    bounds = {}
    for task in common:
        fates = [fate for group in groups for fate in group.fates if fate.run.task == task and fate.drawn]
        values = [value for fate in fates for value in fate.run.curves[options.metric].values()]
        low, high = options.bounds.get(task, (min(values), max(values)))
        bounds[task] = (high, low) if options.lower else (low, high)
    return bounds


def _joined(group: Group, common: Sequence[str], bounds: Mapping[str, Bounds]) -> Scores | None:
    columns = [[_normalized(score, bounds.get(task, AS_IT_IS)) for score in group.scores(task)] for task in common]
    return Scores.of(columns) if columns and all(columns) else None


def _result(
    group: Group,
    scores: Scores | None,
    common: Sequence[str],
    thresholds: Floats,
    options: ReportOptions,
    *,
    normalized: bool,
) -> GroupResult:
    settings: dict[str, int] = {"resamples": options.resamples, "seed": options.seed}
    aggregates: dict[str, Interval] = {}
    tasks, profile = {}, None
    if scores is not None:
        aggregates = statistics.estimate(NORMALISED if normalized else PLAIN, scores, **settings)
        shares = {"profile": statistics.shares(thresholds, lower=options.lower)}
        few = {"resamples": options.band_resamples, "seed": options.seed}
        profile = statistics.estimate(shares, scores, **few)["profile"]
    for task in dict.fromkeys(fate.run.task for fate in group.fates if fate.score is not None):
        own = Scores.of([group.scores(task)])
        alike = common == [task] and not normalized
        estimates = aggregates if alike else statistics.estimate(PLAIN, own, **settings)
        tasks[task] = (own, estimates["iqm"], estimates["mean"])
    return GroupResult(group, scores, aggregates, tasks, profile)


def _compare(drawn: Sequence[GroupResult], family: int, options: ReportOptions) -> list[Comparison]:
    """Compare each pair of drawn groups; p values are corrected for all pairs, also hidden ones."""
    settings = {"resamples": options.resamples, "seed": options.seed}
    scores = [(result.group.label, result.scores) for result in drawn if result.scores is not None]
    pairs = list(combinations(scores, 2))
    chances = [statistics.permutation(left, right, **settings) for (_, left), (_, right) in pairs]
    gaps = [statistics.compare(left, right, lower=options.lower, **settings) for (_, left), (_, right) in pairs]
    return [
        Comparison(first, second, *gap, chance, options.better)
        for ((first, _), (second, _)), gap, chance in zip(pairs, gaps, statistics.holm(chances, family), strict=True)
    ]


def _curves(groups: Sequence[Group], tasks: Mapping[str, Bounds], options: ReportOptions) -> Curves | None:
    """Return the curves of all runs with measurements, even if their scores do not count; None without any.

    Curves are interpolated linearly. They are extrapolated by at most half a step of the grid, because runs are
    measured at slightly different steps.

    tasks: task -> values that count as 0 and 1.
    """
    runs_by_label = {
        group.label: [fate.run for fate in group.fates if fate.drawn and fate.run.task in tasks] for group in groups
    }
    runs = [run for runs in runs_by_label.values() for run in runs]
    if not runs:
        return None
    curves = [run.curves[options.metric] for run in runs]
    first, last = min(next(iter(curve)) for curve in curves), max(next(reversed(curve)) for curve in curves)
    grid = np.linspace(first, last, min(POINTS, max(map(len, curves))) if last > first else 1)
    intervals, counts, names = {}, {}, list(tasks)
    for label, runs in runs_by_label.items():
        if runs:
            values = np.array([_normalized(_on(grid, run.curves[options.metric]), tasks[run.task]) for run in runs])
            counts[label] = np.isfinite(values).sum(0)
            intervals[label] = _bands(values, np.array([names.index(run.task) for run in runs]), len(names), options)
    return Curves(grid, intervals, counts, "environment steps" if any(run.env_steps for run in runs) else "updates")


def _on(grid: Floats, curve: Curve) -> Floats:
    steps, values = np.array(list(curve)), np.array(list(curve.values()))
    slack = (grid[1] - grid[0]) / 2 if len(grid) > 1 else 0.0
    inside = (grid >= steps[0] - slack) & (grid <= steps[-1] + slack)
    return np.where(inside, np.interp(grid, steps, values), np.nan)


def _bands(values: Floats, places: Indices, tasks: int, options: ReportOptions) -> Interval:
    """Return the bands of curves [n, P], which may be NaN at some points; points with the same runs share a call."""
    estimates = np.full((3, values.shape[1]), np.nan)
    present = np.isfinite(values)
    for pattern in np.unique(present, axis=1).T:
        if len(np.unique(places[pattern])) == tasks:
            points = (present == pattern[:, None]).all(0)
            part = values[np.ix_(pattern, points)]
            few = {"resamples": options.band_resamples, "seed": options.seed}
            estimates[:, points] = statistics.bands(part, places[pattern], **few)
    return Interval(*estimates)

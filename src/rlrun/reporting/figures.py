"""The figures of a report: learning curves, final scores, performance profiles, probability of improvement."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rlrun.reporting.curves import Curves
from rlrun.reporting.findings import TOGETHER, Findings
from rlrun.reporting.plotting import LEFT, LETTER, LINE, RIGHT, TOP, WIDTH, Figure, cut, placed, scale
from rlrun.reporting.wording import interval, number, span

PANEL = 232  # units from the top of a figure to its horizontal axis
STRIP = 34  # … of the strip that counts runs
PAIRS = 10  # of a figure, at most
ROW = 2 * LINE + 14


class Drawing(NamedTuple):
    """A figure, and what is said of it."""

    name: str  # of its file
    figure: Figure
    description: str
    caption: str


def draw(findings: Findings) -> Iterator[Drawing]:
    """Yield all figures that the findings have numbers for."""
    for number_, (title, curves) in enumerate(findings.curves.items(), start=1):
        yield _learning(findings, title, curves, f"curves-{number_}")
    if findings.common:
        yield _finals(findings)
        yield _profiles(findings)
    if findings.comparisons:
        yield _improvements(findings)


def _learning(findings: Findings, title: str, curves: Curves, name: str) -> Drawing:
    figure = Figure(f"{title}: {findings.options.metric}", PANEL + 2 * LINE + 4)
    hues = {result.arm.label: hue for hue, result in enumerate(findings.drawn)}
    across = scale(curves.grid, LEFT, WIDTH - RIGHT, margin=0.0)
    up = scale(np.concatenate([np.ravel(band) for band in curves.bands.values()]), PANEL, TOP)
    figure.up(up, LEFT, WIDTH - RIGHT)
    figure.across(across, TOP, PANEL, curves.axis)
    xs = placed(curves.grid, across)
    for label, band in curves.bands.items():
        figure.band(xs, placed(band.low, up), placed(band.high, up), hues[label])
    for label, band in curves.bands.items():
        figure.line(xs, placed(band.value, up), hues[label])
        if len(xs) == 1:
            figure.dot(xs[0], up(float(band.value[0])), hues[label])
    counts = [count for runs in curves.runs.values() for count in runs]
    sizes = span(map(int, counts), "run")
    if min(counts) < max(counts):
        _count_runs(figure, curves, xs, hues)
    figure.legend([result.arm.label for result in findings.drawn])
    last = "; ".join(f"{label}: {_last(band.value)}" for label, band in curves.bands.items())
    unit = "normalised scores" if title == TOGETHER else "the score"
    caption = f"Interquartile mean of {unit}, with pointwise 95 % intervals; {sizes} of an arm at a point."
    return Drawing(name, figure, f"{caption} At its last point: {last}.", caption)


def _count_runs(figure: Figure, curves: Curves, xs: list[float], hues: dict[str, int]) -> None:
    """Draw below how many runs of each arm there are at each point."""
    top = figure.height + 8
    up = scale([0, *(count for runs in curves.runs.values() for count in runs)], top + STRIP, top, margin=0.0)
    for count in (0, int(up.high)):
        figure.rule(up(count), LEFT, WIDTH - RIGHT, str(count))
    figure.text(LEFT, top + STRIP + LINE - 2, "runs at each point")
    for label, runs in curves.runs.items():
        figure.line(xs, placed(runs, up), hues[label])
    figure.height = int(top + STRIP + LINE + 4)


def _finals(findings: Findings) -> Drawing:
    drawn = findings.drawn
    bottom = TOP + ROW * len(drawn)
    what = "normalised score" if findings.bounds else findings.options.metric
    figure = Figure("Final scores", bottom + 2 * LINE + 4)
    rows = [(result, result.aggregates["iqm"], result.scores) for result in drawn if result.scores is not None]
    values = [value for _, estimate, scores in rows for value in (*estimate, *scores.values)]
    across = scale(values, 12, WIDTH - RIGHT)
    figure.across(across, TOP, bottom, what)
    for hue, (result, estimate, scores) in enumerate(rows):
        y = TOP + ROW * hue + LINE + 14
        figure.text(12, y - 13, cut(result.arm.label, int((WIDTH - 24) / LETTER)), strong=True)
        for value in scores.values[:500]:
            figure.dot(across(float(value)), y + 10, hue, radius=2.6, opacity=0.55)
        figure.whiskers(y, across(estimate.low), across(estimate.high), hue)
        figure.dot(across(float(estimate.value)), y, hue)
    intervals = "; ".join(f"{result.arm.label}: {interval(estimate)}" for result, estimate, _ in rows)
    caption = "Interquartile mean with its 95 % interval; each small dot is a run."
    return Drawing("final-scores", figure, f"{caption} {intervals}.", caption)


def _profiles(findings: Findings) -> Drawing:
    figure = Figure("Performance profiles", PANEL + 2 * LINE + 4)
    across = scale(findings.thresholds, LEFT, WIDTH - RIGHT, margin=0.0)
    up = scale([0.0, 1.0], PANEL, TOP)
    figure.up(up, LEFT, WIDTH - RIGHT)
    what = "normalised score" if findings.bounds else "score"
    figure.across(across, TOP, PANEL, f"{what} τ")
    xs = placed(findings.thresholds, across)
    profiles = [(result.arm.label, result.profile) for result in findings.drawn if result.profile is not None]
    for hue, (_, profile) in enumerate(profiles):
        figure.band(xs, placed(profile.low, up), placed(profile.high, up), hue)
    for hue, (_, profile) in enumerate(profiles):
        figure.line(xs, placed(profile.value, up), hue)
    figure.legend([label for label, _ in profiles])
    caption = f"Share of runs with a {what} above τ, with pointwise 95 % intervals."
    centre = len(findings.thresholds) // 2
    at = number(float(findings.thresholds[centre]))
    shares = (f"{label}: {number(float(profile.value[centre]))}" for label, profile in profiles)
    return Drawing("performance-profiles", figure, f"{caption} At τ = {at}: {'; '.join(shares)}.", caption)


def _improvements(findings: Findings) -> Drawing:
    rows = (
        findings.comparisons if len(findings.comparisons) <= PAIRS else findings.comparisons[: len(findings.drawn) - 1]
    )
    bottom = TOP + (ROW - 4) * len(rows)
    figure = Figure("Probability of improvement", bottom + 2 * LINE + 4)
    across = scale([0.0, 1.0], 12, WIDTH - RIGHT)
    figure.across(across, TOP, bottom, "P(a run of the first scores higher)")
    figure.add(f'<path class="axis" stroke-dasharray="3 3" d="M{across(0.5):.1f} {TOP}V{bottom}"/>')
    for place, row in enumerate(rows):
        y = TOP + (ROW - 4) * place + LINE + 14
        half = int((WIDTH - 24) / LETTER / 2) - 2
        figure.text(12, y - 12, f"{cut(row.one, half)}  >  {cut(row.other, half)}", strong=True)
        figure.whiskers(y, across(row.improvement.low), across(row.improvement.high), 0)
        figure.dot(across(row.improvement.value), y, 0)
    caption = "Probability that a run of the first arm scores higher than one of the second, with its 95 % interval."
    if len(rows) < len(findings.comparisons):
        caption += " The best arm against the others; all pairs are in the table."
    intervals = "; ".join(f"{row.one} over {row.other}: {interval(row.improvement)}" for row in rows)
    return Drawing("probability-of-improvement", figure, f"{caption} {intervals}.", caption)


def _last(values: np.ndarray) -> str:
    known = [float(value) for value in values if math.isfinite(value)]
    return number(known[-1]) if known else "none"

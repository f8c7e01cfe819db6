"""The figures of a report as SVG: learning curves, final scores, performance profiles, probability of improvement.

This module writes SVG itself. matplotlib 3.10 would save about 100 lines. It takes 96 MB with its dependencies and
0.3 s to import, and its files are two to four times as large. Its SVG would still lack colors for light and dark mode,
unique ids, and descriptions for blind readers. Interactive libraries (Plotly, Altair) need scripts, which a report does
not contain.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

from rlrun.analysis.report.findings import TOGETHER, Curves, Findings
from rlrun.analysis.report.groups import cut
from rlrun.analysis.report.statistics import Floats, Interval
from rlrun.analysis.report.wording import interval, number
from rlrun.core.errors import MissingExtra, RequestError
from rlrun.core.files import counted

WIDTH = 420  # units, of every figure: the width of a phone, so that text stays legible there
LEFT, RIGHT, TOP = 50, WIDTH - 20, 12  # edges of the plotted area
MARGIN = 12  # left of figures whose rows have their labels above them
PANEL = 232  # units from the top of a figure to its horizontal axis
STRIP = 34  # height of the strip that counts runs
TITLE = 24  # height of the title of a figure in its own file
LINE = 17  # height of a line of text
LETTER = 7.2  # approximate width of a letter
PAIRS = 10  # most pairs in a figure
DASHES = ("", "7 3", "2 3", "9 3 2 3", "12 4", "4 2", "1 4", "6 2 2 2")
COLORS = {  # in light mode, and in dark mode
    "paper": ("#ffffff", "#14171c"),
    "ink": ("#1c2128", "#e8eaed"),
    "faint": ("#5a6370", "#a7afba"),
    "grid": ("#e3e6ea", "#2c323a"),
    "hue0": ("#0069ad", "#5db7f0"),
    "hue1": ("#c14a00", "#ff9255"),
    "hue2": ("#00745a", "#3ccf9f"),
    "hue3": ("#a3306f", "#ee8fc6"),
    "hue4": ("#7d6100", "#e3c04e"),
    "hue5": ("#4a4a4a", "#c8c8c8"),
    "hue6": ("#087f9b", "#6fd5e6"),
    "hue7": ("#6a45b5", "#bba3f5"),
}
FONTS = '"DejaVu Sans","Liberation Sans","Noto Sans",Arial,sans-serif'
STYLE = f"""\
svg.figure text{{font:12px system-ui,{FONTS};fill:var(--faint)}}
svg.figure text.strong{{fill:var(--ink);paint-order:stroke;stroke:var(--paper);stroke-width:3px}}
svg.figure .grid{{stroke:var(--grid);stroke-width:1;fill:none}}
svg.figure .axis{{stroke:var(--faint);stroke-width:1;fill:none}}
""" + "".join(
    f"svg.figure .s{hue}{{stroke:var(--hue{hue})}}svg.figure .f{hue}{{fill:var(--hue{hue})}}\n"
    for hue in range(len(DASHES))
)
ZOOM = 2.5  # pixels per unit
PROBE = '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="20">{}</svg>'
LETTERS = f'<text x="2" y="16" font-family="{escape(FONTS)}">Aa1</text>'


class AxisScale(NamedTuple):
    """Maps numbers to coordinates along one side of a figure."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: Any) -> Any:
        return self.start + (self.end - self.start) * (value - self.low) / (self.high - self.low)


def scale(values: Iterable[float], start: float, end: float, *, margin: float = 0.04) -> AxisScale:
    """Return a scale whose range includes all finite values."""
    known = [float(value) for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(known), max(known)
    room = (high - low) * margin if high > low else max(abs(high), 1.0) * 0.05
    return AxisScale(low - room, high + room, start, end)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return round numbers within bounds, evenly spaced."""
    raw = (high - low) / max(most - 1, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [
        round(index * step, 12) if step > 1e-9 else index * step
        for index in range(first, first + most + 2)
        if index * step <= high + step * 1e-9
    ]


def short(value: float) -> str:
    """Return a number as a tick label: 20k, 1.5M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size <= abs(value) < size * 1000 and (size > 1e3 or abs(value) >= 1e4):
            return f"{value / size:.4g}{unit}".replace("-", "−")
    return f"{value:.4g}".replace("-", "−").replace("e+", "e")


class Figure:
    """A figure with methods that draw into it; `svg` returns it.

    Args:
        name: of its file, unique on a page.
        title: of the figure.
        height: in units, without the legend.

    Attributes:
        caption: the text below it.
        description: text for blind readers.
    """

    def __init__(self, name: str, title: str, height: int) -> None:
        self.name, self.title, self.height = name, title, height
        self.caption = self.description = ""
        self._parts: list[str] = []

    def path(self, kind: str, places: str, attributes: str = "") -> None:
        """Draw a path.

        kind: CSS class; places: SVG path data.
        """
        self._parts.append(f'<path class="{kind}"{attributes} d="{places}"/>')

    def text(self, x: float, y: float, text: str, *, anchor: str = "start", strong: bool = False) -> None:
        """Write a line."""
        kind = ' class="strong"' if strong else ""
        self._parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind}>{escape(text)}</text>')

    def x_axis(self, x: AxisScale, bottom: float, label: str) -> None:
        """Draw a horizontal axis with its grid and label."""
        for value in ticks(x.low, x.high):
            self.path("grid", f"M{x(value):.1f} {TOP:.1f}V{bottom:.1f}")
            self.text(x(value), bottom + LINE, short(value), anchor="middle")
        self.path("axis", f"M{x.start:.1f} {bottom:.1f}H{x.end:.1f}")
        self.text((x.start + x.end) / 2, bottom + 2 * LINE, label, anchor="middle")

    def y_line(self, y: float, label: str) -> None:
        """Draw a horizontal line of the grid with its label."""
        self.path("grid", f"M{LEFT:.1f} {y:.1f}H{RIGHT:.1f}")
        self.text(LEFT - 6, y + 4, label, anchor="end")

    def bands(self, grid: Floats, bands: Mapping[int, Interval], y: AxisScale, label: str) -> Floats:
        """Draw axes, and a line with its interval for each hue; return the x coordinates of the grid."""
        x = scale(grid, LEFT, RIGHT, margin=0.0)
        for value in ticks(y.low, y.high):
            self.y_line(y(value), short(value))
        self.x_axis(x, PANEL, label)
        places: Floats = x(grid)
        for hue, band in bands.items():
            self._area(places, y(band.low), y(band.high), hue)
        for hue, band in bands.items():
            self.line(places, y(band.value), hue)
            if len(grid) == 1:
                self.dot(places[0], y(band.value[0]), hue)
        return places

    def line(self, xs: Sequence[float] | Floats, ys: Sequence[float] | Floats, hue: int) -> None:
        """Draw a line through points, with gaps at NaNs."""
        overrides, pen = [], "M"
        for x, y in zip(xs, ys, strict=True):
            if math.isfinite(y):
                overrides.append(f"{pen}{x:.1f} {y:.1f}")
            pen = "L" if math.isfinite(y) else "M"
        dash = f' stroke-dasharray="{DASHES[hue]}"' if DASHES[hue] else ""
        self.path(f"s{hue}", "".join(overrides), f' fill="none" stroke-width="2"{dash}')

    def _area(self, xs: Floats, lows: Floats, highs: Floats, hue: int) -> None:
        """Fill the area between two lines, except where either is NaN."""
        known = np.isfinite(lows) & np.isfinite(highs)
        edges = np.flatnonzero(np.diff(known, prepend=False, append=False))
        for part in map(slice, edges[::2], edges[1::2]):
            lower = [f"{x:.1f} {y:.1f}" for x, y in zip(xs[part], lows[part], strict=True)]
            back = [f"{x:.1f} {y:.1f}" for x, y in zip(xs[part], highs[part], strict=True)]
            self.path(f"f{hue}", f"M{'L'.join([*lower, *back[::-1]])}Z", ' fill-opacity="0.18"')

    def estimate(self, estimate: Interval, x: AxisScale, y: float, hue: int) -> None:
        """Draw a point, with its horizontal interval if it has one."""
        low, high = x(estimate.low), x(estimate.high)
        if math.isfinite(low) and math.isfinite(high):
            ends = f"M{low:.1f} {y - 5:.1f}v10M{high:.1f} {y - 5:.1f}v10"
            self.path(f"s{hue}", f"M{low:.1f} {y:.1f}H{high:.1f}{ends}", ' fill="none" stroke-width="2.5"')
        self.dot(x(estimate.value), y, hue)

    def dot(self, x: float, y: float, hue: int, shape: str = 'r="4.5"') -> None:
        """Draw a point."""
        self._parts.append(f'<circle class="f{hue}" cx="{x:.1f}" cy="{y:.1f}" {shape}/>')

    def legend(self, labels: Iterable[str]) -> None:
        """Draw a legend of the lines below the figure."""
        for hue, label in enumerate(labels):
            y = self.height + LINE / 2
            self.line([LEFT - 34, LEFT - 6], [y, y], hue)
            self.text(LEFT, y + 4, cut(label, int((WIDTH - LEFT) / LETTER)), strong=True)
            self.height += LINE
        self.height += 6

    def describe(self, caption: str, details: str) -> Figure:
        """Set the caption and the description; return the figure."""
        self.caption, self.description = caption, f"{caption} {details}."
        return self

    def svg(self, *, alone: bool = False) -> str:
        """Return the figure as SVG; with `alone`, including title, colors and background, for a separate file."""
        overrides = (
            f'<title id="{self.name}-t">{escape(self.title)}</title>'
            f'<desc id="{self.name}-d">{escape(self.description)}</desc>'
        )
        about = f'role="img" aria-labelledby="{self.name}-t {self.name}-d"'
        content, height = "".join(self._parts), self.height
        if alone:
            height += TITLE
            about += f' xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
            style = re.sub(r"var\(--(\w+)\)", lambda name: COLORS[name[1]][0], STYLE)
            overrides += f'<style>{style}</style><rect width="{WIDTH}" height="{height}" fill="{COLORS["paper"][0]}"/>'
            title = f'<text class="strong" x="12" y="18">{escape(cut(self.title, int(WIDTH / LETTER)))}</text>'
            content = f'{title}<g transform="translate(0 {TITLE})">{content}</g>'
        return f'<svg class="figure" {about} viewBox="0 0 {WIDTH} {height}">{overrides}{content}</svg>\n'


def draw(findings: Findings) -> Iterator[Figure]:
    """Yield all figures for which the findings have numbers."""
    for place, (title, curves) in enumerate(findings.curves.items(), start=1):
        yield _curves(findings, title, curves, f"curves-{place}")
    if findings.common:
        yield _finals(findings)
        yield _profiles(findings)
    if findings.comparisons:
        yield _improvements(findings)


def _curves(findings: Findings, title: str, curves: Curves, name: str) -> Figure:
    figure = Figure(name, f"{title}: {findings.options.metric}", PANEL + 2 * LINE + 4)
    labels = [result.group.label for result in findings.drawn]
    y = scale(np.ravel([*curves.bands.values()]), PANEL, TOP)
    bands = {labels.index(label): band for label, band in curves.bands.items()}
    places = figure.bands(curves.grid, bands, y, curves.axis)
    counts = np.array([*curves.runs.values()])
    few, many = int(counts.min()), int(counts.max())
    if few < many:  # a strip below counts the runs of each group at each point
        top = figure.height + 8
        y = AxisScale(0, many, top + STRIP, top)
        for count in (0, many):
            figure.y_line(y(count), str(count))
        figure.text(LEFT, y.start + LINE - 2, "runs at each point")
        for label, runs in curves.runs.items():
            figure.line(places, y(runs), labels.index(label))
        figure.height = top + STRIP + LINE + 4
    figure.legend(labels)
    finite = {label: band.value[np.isfinite(band.value)] for label, band in curves.bands.items()}
    last = "; ".join(f"{label}: {number(values[-1]) if len(values) else 'none'}" for label, values in finite.items())
    unit = "normalized scores" if title == TOGETHER else "the score"
    sizes = counted(many, "run") if few == many else f"{few} to {counted(many, 'run')}"
    caption = f"Interquartile mean of {unit}, with pointwise 95 % intervals; {sizes} of a group at a point."
    return figure.describe(caption, f"At its last point: {last}")


def _finals(findings: Findings) -> Figure:
    row = 2 * LINE + 14
    bottom = TOP + row * len(findings.drawn)
    figure = Figure("final-scores", "Final scores", bottom + 2 * LINE + 4)
    rows = [(res.group.label, res.aggregates["iqm"], res.scores) for res in findings.drawn if res.scores is not None]
    x = scale([value for _, iqm, scores in rows for value in (*iqm, *scores.values)], MARGIN, RIGHT)
    figure.x_axis(x, bottom, "normalized score" if findings.bounds else findings.options.metric)
    for hue, (label, iqm, scores) in enumerate(rows):
        y = TOP + row * hue + LINE + 14
        figure.text(MARGIN, y - 13, cut(label, int((WIDTH - 2 * MARGIN) / LETTER)), strong=True)
        for value in scores.values[:500]:
            figure.dot(x(value), y + 10, hue, 'r="2.6" fill-opacity="0.55"')
        figure.estimate(iqm, x, y, hue)
    intervals = "; ".join(f"{label}: {interval(iqm)}" for label, iqm, _ in rows)
    return figure.describe("Interquartile mean with its 95 % interval; each small dot is a run.", intervals)


def _profiles(findings: Findings) -> Figure:
    figure = Figure("performance-profiles", "Performance profiles", PANEL + 2 * LINE + 4)
    kind = "normalized score" if findings.bounds else "score"
    profiles = {res.group.label: res.profile for res in findings.drawn if res.profile is not None}
    bands = dict(enumerate(profiles.values()))
    figure.bands(findings.thresholds, bands, scale([0.0, 1.0], PANEL, TOP), f"{kind} τ")
    figure.legend(profiles)
    center = len(findings.thresholds) // 2
    shares = "; ".join(f"{label}: {number(profile.value[center])}" for label, profile in profiles.items())
    side = "below" if findings.options.lower else "above"
    caption = f"Share of runs with a {kind} {side} τ, with pointwise 95 % intervals."
    return figure.describe(caption, f"At τ = {number(findings.thresholds[center])}: {shares}")


def _improvements(findings: Findings) -> Figure:
    row, pairs, better = 2 * LINE + 10, findings.comparisons, findings.options.better
    sign = "<" if findings.options.lower else ">"
    rows = pairs if len(pairs) <= PAIRS else pairs[: len(findings.drawn) - 1]
    bottom = TOP + row * len(rows)
    figure = Figure("probability-of-improvement", "Probability of improvement", bottom + 2 * LINE + 4)
    x = scale([0.0, 1.0], MARGIN, RIGHT)
    figure.x_axis(x, bottom, f"P(a run of the first scores {better})")
    figure.path("axis", f"M{x(0.5):.1f} {TOP}V{bottom}", ' stroke-dasharray="3 3"')
    half = int((WIDTH - 2 * MARGIN) / LETTER / 2) - 2
    for place, pair in enumerate(rows):
        y = TOP + row * place + LINE + 14
        figure.text(MARGIN, y - 12, f"{cut(pair.first, half)}  {sign}  {cut(pair.second, half)}", strong=True)
        figure.estimate(pair.improvement, x, y, 0)
    caption = f"Probability that a run of the first group scores {better} than one of the second"
    caption += ", with its 95 % interval."
    if len(rows) < len(pairs):
        caption += " The best group against the others; all pairs are in the table."
    intervals = "; ".join(f"{pair.first} over {pair.second}: {interval(pair.improvement)}" for pair in rows)
    return figure.describe(caption, intervals)


def renderer() -> Callable[[str], bytes]:
    """Return a function from SVG text to the bytes of a PNG file.

    Raises:
        MissingExtra: the library is not installed.
        RequestError: the machine has no fonts, so figures would lack text.
    """
    try:
        import resvg_py
    except ImportError:
        raise MissingExtra("--png", "resvg-py", "plots") from None
    draw: Callable[..., bytes] = resvg_py.svg_to_bytes
    if draw(svg_string=PROBE.format(LETTERS)) == draw(svg_string=PROBE.format("")):
        raise RequestError("--png: this machine has no fonts, so figures would have no text; use --svg")
    return lambda svg: bytes(draw(svg_string=svg, zoom=ZOOM))

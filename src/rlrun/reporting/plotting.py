"""Axes, lines and bands as SVG, for a page that is light or dark, or with colours of their own for a file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Theme: TypeAlias = dict[str, Any]  # colours by name; `hues` are those of arms

WIDTH = 420  # units, of every figure: as wide as a phone, so that letters stay legible there
LEFT, RIGHT, TOP = 50, 20, 12
TITLE = 24  # units above a figure in a file of its own
LINE = 17  # units a line of text
LETTER = 7.2  # units a letter, about
DASHES = ("", "7 3", "2 3", "9 3 2 3", "12 4", "4 2", "1 4", "6 2 2 2")
LIGHT: Theme = {
    "paper": "#ffffff",
    "ink": "#1c2128",
    "faint": "#5a6370",
    "grid": "#e3e6ea",
    "hues": ("#0069ad", "#c14a00", "#00745a", "#a3306f", "#7d6100", "#4a4a4a", "#087f9b", "#6a45b5"),
}
DARK: Theme = {
    "paper": "#14171c",
    "ink": "#e8eaed",
    "faint": "#a7afba",
    "grid": "#2c323a",
    "hues": ("#5db7f0", "#ff9255", "#3ccf9f", "#ee8fc6", "#e3c04e", "#c8c8c8", "#6fd5e6", "#bba3f5"),
}
RULES = """\
svg.figure text{font:12px system-ui,"DejaVu Sans","Liberation Sans",Arial,sans-serif;fill:FAINT}
svg.figure text.strong{fill:INK;paint-order:stroke;stroke:PAPER;stroke-width:3px}
svg.figure .grid{stroke:GRID;stroke-width:1;fill:none}
svg.figure .axis{stroke:FAINT;stroke-width:1;fill:none}
"""


class Scale(NamedTuple):
    """Numbers to places along one side of a figure."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (self.end - self.start) * (value - self.low) / (self.high - self.low)


def scale(values: Iterable[float], start: float, end: float, *, margin: float = 0.04) -> Scale:
    """Return a scale on which all the finite values have room."""
    known = [float(value) for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(known), max(known)
    room = (high - low) * margin or max(abs(high), 1.0) * 0.05
    return Scale(low - room, high + room, start, end) if margin or low == high else Scale(low, high, start, end)


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
    """Return a number as it stands beside an axis: 20k, 1.5M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size <= abs(value) < size * 1000 and (size > 1e3 or abs(value) >= 1e4):
            return f"{value / size:.4g}{unit}".replace("-", "−")
    return f"{value:.4g}".replace("-", "−").replace("e+", "e")


def cut(text: str, letters: int) -> str:
    """Return a text of at most so many letters."""
    return text if len(text) <= letters else f"{text[: letters - 1]}…"


class Figure:
    """What is drawn so far; `svg` returns it.

    Args:
        title: what it shows.
        height: units, without the legend.
    """

    def __init__(self, title: str, height: int) -> None:
        self.title = title
        self.height = height
        self._parts: list[str] = []

    def add(self, text: str) -> None:
        """Take a piece of SVG that is escaped already."""
        self._parts.append(text)

    def text(self, x: float, y: float, text: str, *, anchor: str = "start", strong: bool = False) -> None:
        """Write a line."""
        kind = ' class="strong"' if strong else ""
        self.add(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind}>{escape(text)}</text>')

    def across(self, scale_: Scale, top: float, bottom: float, label: str) -> None:
        """Draw a horizontal axis with its grid, and what it counts."""
        for value in ticks(scale_.low, scale_.high):
            x = scale_(value)
            self.add(f'<path class="grid" d="M{x:.1f} {top:.1f}V{bottom:.1f}"/>')
            self.text(x, bottom + LINE, short(value), anchor="middle")
        self.add(f'<path class="axis" d="M{scale_.start:.1f} {bottom:.1f}H{scale_.end:.1f}"/>')
        self.text((scale_.start + scale_.end) / 2, bottom + 2 * LINE, label, anchor="middle")

    def up(self, scale_: Scale, left: float, right: float) -> None:
        """Draw a vertical axis with its grid."""
        for value in ticks(scale_.low, scale_.high):
            self.rule(scale_(value), left, right, short(value))

    def rule(self, y: float, left: float, right: float, label: str) -> None:
        """Draw one line of a grid, and what it stands for."""
        self.add(f'<path class="grid" d="M{left:.1f} {y:.1f}H{right:.1f}"/>')
        self.text(left - 6, y + 4, label, anchor="end")

    def line(self, xs: Sequence[float], ys: Sequence[float], hue: int) -> None:
        """Draw a line through places; where one is no number it is interrupted."""
        words, pen = [], "M"
        for x, y in zip(xs, ys, strict=True):
            if math.isfinite(y):
                words.append(f"{pen}{x:.1f} {y:.1f}")
            pen = "L" if math.isfinite(y) else "M"
        dash = f' stroke-dasharray="{DASHES[hue]}"' if DASHES[hue] else ""
        self.add(f'<path class="s{hue}" fill="none" stroke-width="2"{dash} d="{"".join(words)}"/>')

    def band(self, xs: Sequence[float], lows: Sequence[float], highs: Sequence[float], hue: int) -> None:
        """Fill what lies between two lines, as far as both are numbers."""
        known = np.isfinite(np.asarray(lows)) & np.isfinite(np.asarray(highs))
        edges = np.flatnonzero(np.diff(np.concatenate([[False], known, [False]])))
        for start, end in zip(edges[::2], edges[1::2], strict=True):
            there = [f"{xs[i]:.1f} {lows[i]:.1f}" for i in range(start, end)]
            back = [f"{xs[i]:.1f} {highs[i]:.1f}" for i in reversed(range(start, end))]
            self.add(f'<path class="f{hue}" fill-opacity="0.18" d="M{"L".join(there + back)}Z"/>')

    def whiskers(self, y: float, low: float, high: float, hue: int) -> None:
        """Draw an interval that lies."""
        if math.isfinite(low) and math.isfinite(high):
            ends = f"M{low:.1f} {y - 5:.1f}v10M{high:.1f} {y - 5:.1f}v10"
            self.add(f'<path class="s{hue}" fill="none" stroke-width="2.5" d="M{low:.1f} {y:.1f}H{high:.1f}{ends}"/>')

    def dot(self, x: float, y: float, hue: int, *, radius: float = 4.5, opacity: float = 1.0) -> None:
        """Draw a point."""
        faint = f' fill-opacity="{opacity}"' if opacity < 1 else ""
        self.add(f'<circle class="f{hue}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"{faint}/>')

    def legend(self, labels: Sequence[str]) -> None:
        """Say below what each line stands for."""
        for hue, label in enumerate(labels):
            y = self.height + LINE * (hue + 0.5)
            self.line([LEFT - 34, LEFT - 6], [y, y], hue)
            self.text(LEFT, y + 4, cut(label, int((WIDTH - LEFT) / LETTER)), strong=True)
        self.height += LINE * len(labels) + 6

    def svg(self, name: str, description: str, *, alone: bool = False) -> str:
        """Return the figure.

        Args:
            name: unlike that of any other figure of the page.
            description: what it shows, for who cannot see it.
            alone: with its title, colours and paper, for a file.
        """
        words = f'<title id="{name}-t">{escape(self.title)}</title><desc id="{name}-d">{escape(description)}</desc>'
        about, content, height = f'role="img" aria-labelledby="{name}-t {name}-d"', "".join(self._parts), self.height
        if alone:
            height += TITLE
            about += f' xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
            words += f'<style>{rules(LIGHT)}</style><rect width="{WIDTH}" height="{height}" fill="{LIGHT["paper"]}"/>'
            title = f'<text class="strong" x="12" y="18">{escape(cut(self.title, int(WIDTH / LETTER)))}</text>'
            content = f'{title}<g transform="translate(0 {TITLE})">{content}</g>'
        return f'<svg class="figure" {about} viewBox="0 0 {WIDTH} {height}">{words}{content}</svg>\n'


def rules(theme: Theme | None = None) -> str:
    """Return the style of figures: colours of a theme, or variables of the page."""
    text = RULES
    for name in ("paper", "ink", "faint", "grid"):
        text = text.replace(name.upper(), str(theme[name]) if theme else f"var(--{name})")
    for hue in range(len(DASHES)):
        colour = theme["hues"][hue] if theme else f"var(--hue{hue})"
        text += f"svg.figure .s{hue}{{stroke:{colour}}}svg.figure .f{hue}{{fill:{colour}}}\n"
    return text


def placed(values: NDArray[Any], scale_: Scale) -> list[float]:
    """Return where values stand; NaN where they are none."""
    return [scale_(float(value)) for value in values]

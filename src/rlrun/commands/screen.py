"""Draw a frame of `rlrun watch` as lines of styled text."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from rich.cells import set_cell_size
from rich.text import Text

from rlrun.core.errors import printable

DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # dots of a Braille character: four rows of two
LEFT = 10  # width of the numbers beside a chart, in cells
CHART = (70, 12)  # smallest width and height of one of several charts, in cells
STYLES = {"running": "green", "completed": "cyan", "failed": "red", "interrupted": "red", "pending": "dim"}
KEYS = "←→ metric  ↑↓ run  q quit"


class JobRow(NamedTuple):
    """A run in the list: its name, state, steps, return, and the reason if it failed."""

    name: str
    state: str
    steps: str = ""
    result: str = ""
    why: str = ""


class Curve(NamedTuple):
    """A metric and its points (x, value) in temporal order."""

    name: str
    points: Sequence[tuple[float, float]]


class View(NamedTuple):
    """The content of a frame.

    rows: of all runs; chosen: index of the selected run; parts: texts of its progress; curves: its metrics, the
    selected one first; place: number of the selected metric, and of all metrics; without: text if there are no curves.
    """

    rows: Sequence[JobRow]
    chosen: int
    parts: Sequence[str]
    curves: Sequence[Curve]
    place: tuple[int, int]
    without: str = "no metrics yet"


def frame(view: View, width: int, height: int, *, braille: bool = True) -> Text:
    """Return a frame of exactly this size in cells; control sequences in names from files are replaced."""
    row = view.rows[view.chosen]
    lines = [Text.assemble((" ".join((row.name, "")), "bold"), (row.state, STYLES.get(row.state, "")))]
    lines += [Text(line) for line in wrapped(view.parts, width)[:3]]
    table = _table(view, width, (height - len(lines)) // 3) if len(view.rows) > 1 else []
    lines += _charts(view.curves, width, height - len(lines) - len(table) - 1, braille, view.without)
    index, count = view.place
    below = f"{KEYS}   metric {index + 1}/{count}" if count else KEYS
    lines += [*table, Text(f"{below}  run {view.chosen + 1}/{len(view.rows)}", "dim")]
    return Text("\n").join(_fitted(line, width) for line in lines[:height])


def _fitted(line: Text, width: int) -> Text:
    line.plain = printable(line.plain)
    line.truncate(width, overflow="ellipsis", pad=True)
    return line


def wrapped(parts: Sequence[str], width: int) -> list[str]:
    """Return texts joined to lines, without breaks inside a text."""
    lines: list[str] = []
    for part in parts:
        joined = f"{lines[-1]}  {part}" if lines else part
        if lines and len(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(part)
    return lines


def _table(view: View, width: int, height: int) -> list[Text]:
    """Return a table of the runs around the selected one, with a header."""
    shown = max(min(height - 1, len(view.rows)), 1)
    first = min(max(view.chosen - shown // 2, 0), len(view.rows) - shown)
    name = min(max(width - 44, 10), 70)
    lines = [Text(_cells(JobRow("run", "state", "steps", "return"), name), "bold")]
    for index, row in enumerate(view.rows[first : first + shown], start=first):
        style = STYLES.get(row.state, "") + (" reverse" if index == view.chosen else "")
        lines.append(Text(_cells(row, name), style.strip()))
    return lines


def _cells(row: JobRow, name: int) -> str:
    """Return a row of the table; name: width of the first column in cells."""
    left, why = (set_cell_size(printable(text), size) for text, size in ((row.name, name), (row.why, 80)))
    return f"{left} {row.state:<11} {row.steps:>11} {row.result:>10}  {why}".rstrip()


def _charts(curves: Sequence[Curve], width: int, height: int, braille: bool, without: str) -> list[Text]:
    """Return as many charts as fit, in columns and rows."""
    columns, rows = max(width // CHART[0], 1), max(height // CHART[1], 1)
    if len(curves) <= columns * (rows - 1):
        rows = max(-(-len(curves) // columns), 1)
    columns = min(columns, max(len(curves), 1))
    lines: list[Text] = []
    for row in range(rows):
        size = height // rows if row < rows - 1 else height - len(lines)
        drawn = [
            chart(curve, width // columns - 1, size, braille=braille)
            for curve in curves[row * columns : (row + 1) * columns]
        ] or [[without]]
        for number in range(size):
            cells = [set_cell_size(part[number] if number < len(part) else "", width // columns) for part in drawn]
            lines.append(Text("".join(cells), "bold" if number == 0 else "cyan"))
    return lines


def chart(curve: Curve, width: int, height: int, *, braille: bool = True) -> list[str]:
    """Return a chart of exactly `height` lines: its name and newest value, the curve, and the range of x."""
    xs, values = zip(*curve.points, strict=True) if curve.points else ((), ())
    if not values or height < 4 or width < LEFT + 4:
        return [curve.name, *[""] * (height - 1)][:height]
    low, high, cells, rows = min(values), max(values), width - LEFT, height - 2
    letters = [[0] * cells for _ in range(rows)]
    for column, row in _dots(xs, values, 2 * cells, 4 * rows):
        letters[row // 4][column // 2] |= DOTS[row % 4][column % 2]
    drawn = ["".join((chr(0x2800 + dots) if braille else "*") if dots else " " for dots in row) for row in letters]
    labels = [""] * rows
    labels[0], labels[-1] = f"{high:.4g}", f"{low:.4g}"
    first, last = f"{xs[0]:,.0f}", f"{xs[-1]:,.0f}"
    below = " " * LEFT + first + last.rjust(max(cells - len(first), len(last) + 1))
    plot = [f"{label:>{LEFT - 1}} {line}" for label, line in zip(labels, drawn, strict=True)]
    return [f"{printable(curve.name)}  {values[-1]:.4g}", *plot, below]


def _dots(xs: Sequence[float], values: Sequence[float], width: int, height: int) -> Iterator[tuple[int, int]]:
    """Yield the dots (column, row from the top) of a line through the means of each column's points."""
    places, heights = (np.subtract(numbers, min(numbers)) for numbers in (xs, values))
    columns = np.rint(places / (places.max() or 1.0) * (width - 1)).astype(int)
    counts = np.bincount(columns)
    known = np.flatnonzero(counts)
    means = np.bincount(columns, heights)[known] / counts[known] / (heights.max() or 1.0)
    shown = np.arange(known[0], known[-1] + 1)
    rows = np.rint(np.interp(shown, known, np.rint((1.0 - means) * (height - 1)))).astype(int).clip(0, height - 1)
    for column, before, now in zip(shown.tolist(), [rows[0], *rows], rows, strict=False):
        for dot in range(min(before, now), max(before, now) + 1):
            yield column, dot

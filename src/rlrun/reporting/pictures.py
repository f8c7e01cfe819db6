"""The figures of a report as pixels, by the library resvg, from the same SVG."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from rlrun.errors import MissingExtra, RequestError
from rlrun.reporting.figures import Drawing

ZOOM = 2.5  # pixels a unit
PROBE = '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="20">{}</svg>'
LETTERS = '<text x="2" y="16" font-family="sans-serif">Aa1</text>'
FAMILIES = ("DejaVu Sans", "Liberation Sans", "Noto Sans", "Arial", "Helvetica")  # where no "sans-serif" is set up


def require() -> None:
    """Refuse early what could not be drawn.

    Raises:
        MissingExtra: the library is not installed.
        RequestError: the machine has no fonts, so that pictures would be without words.
    """
    _renderer()


def pixels(drawing: Drawing) -> bytes:
    """Return a figure as a PNG file."""
    text = drawing.figure.svg(drawing.name, drawing.description, alone=True)
    return bytes(_renderer()(svg_string=text, zoom=ZOOM))


def _renderer() -> Any:
    try:
        import resvg_py
    except ImportError:
        raise MissingExtra("--png", "resvg-py", "plots") from None
    draw: Any = resvg_py.svg_to_bytes
    return partial(draw, **_fonts(draw))


@cache
def _fonts(draw: Callable[..., bytes]) -> dict[str, str]:
    """Return the arguments by which words are drawn with fonts that this machine has."""
    for options in ({}, *({"sans_serif_family": family} for family in FAMILIES)):
        if draw(svg_string=PROBE.format(LETTERS), **options) != draw(svg_string=PROBE.format("")):
            return options
    raise RequestError("--png: this machine has no fonts, so figures would have no words; use --svg")

"""What each metric means: the tables of `docs/metrics.md` and `docs/why.md`, read by name."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
ROW = re.compile(r"^\| (`[^|]+`) \| (.+) \|$", re.MULTILINE)
PLACES = {**dict.fromkeys(("NAME", "PART", "N", "Q"), r"\w+"), "GROUP": r"[\w.]+"}  # for what a run names itself


@cache
def meaning(metric: str) -> str:
    """Return what is said of a metric; "" where nothing is."""
    return next((said for pattern, said in _rows() if re.fullmatch(pattern, metric)), "")


def patterns() -> list[str]:
    """Return the names of the tables, as they are written."""
    return [name for name, _ in _written()]


def matches(pattern: str, metric: str) -> bool:
    """Say whether a name of the tables stands for a metric."""
    return re.fullmatch(_expression(pattern), metric) is not None


@cache
def _rows() -> tuple[tuple[str, str], ...]:
    return tuple((_expression(name), said) for name, said in _written())


def _written() -> list[tuple[str, str]]:
    text = (DOCS / "metrics.md").read_text()
    return [(name, said) for names, said in ROW.findall(text) for name in re.findall(r"`([^`]+)`", names)]


def _expression(pattern: str) -> str:
    return "/".join(
        "_".join(PLACES.get(word) or re.escape(word) for word in part.split("_")) for part in pattern.split("/")
    )

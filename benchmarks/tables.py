"""Tables of the page of results, and what is in their cells."""

from __future__ import annotations

from typing import Any

Lines = list[str]


def table(heads: list[str], rows: list[list[str]]) -> Lines:
    """Return a table in Markdown."""
    return ["| " + " | ".join(row) + " |" for row in (heads, ["---"] * len(heads), *rows)]


def interval(stats: dict[str, float], form: str) -> str:
    """Return the median, with the smallest and the largest in brackets."""
    return f"{stats['median']:{form}} ({stats['least']:{form}}–{stats['most']:{form}})"


def verdict(result: dict[str, Any]) -> str:
    """Return whether the bar of a result is met."""
    return "met" if result["passed"] else "missed"

"""Pieces of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; bars within cells are escaped."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def code(text: str) -> str:
    """Return text as code on a line; nothing of nothing."""
    return f"`{text}`" if text else ""


def block(text: str, language: str = "text") -> str:
    """Return text as a block of code."""
    return f"```{language}\n{text.rstrip()}\n```"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")

"""Rows of text with aligned columns."""

from __future__ import annotations

from collections.abc import Container, Sequence


def aligned(rows: Sequence[Sequence[str]], *, left: Container[str] = ()) -> list[str]:
    """Return rows as lines; the first one has the heads, and columns whose head is in `left` begin at the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = ["<" if head in left else ">" for head in rows[0]]
    return [
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)).rstrip()
        for row in rows
    ]

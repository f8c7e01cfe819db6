"""Why no graph can be made."""

from __future__ import annotations


class Untraceable(Exception):
    """What a hook does hangs on more than a graph reads, or it writes more than tensors.

    Attributes:
        step: number of the hook; None = all of them.
    """

    def __init__(self, step: int | None, why: str) -> None:
        super().__init__(why)
        self.step = step


def first_line(error: Exception) -> str:
    """Return the first line of what an error says; torch's say many."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)

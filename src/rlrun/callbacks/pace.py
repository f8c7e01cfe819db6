"""When periodic work is due next."""

from __future__ import annotations

NEVER = 2**63  # beyond every counter


def following(now: int, every: int | None) -> int:
    """Return the next multiple of `every` after `now`, so that a resumed run keeps the rhythm; None or 0 = never."""
    return (now // every + 1) * every if every else NEVER

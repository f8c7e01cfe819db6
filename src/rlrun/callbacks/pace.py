"""When periodic work is due next."""

from __future__ import annotations

NEVER = 2**63  # beyond every counter


def due_offline(update: int, every: int | None, offline: int) -> bool:
    """Tell whether periodic work is due among the updates before the first environment step, where steps count.

    every: so many of them; the last one counts, too.
    offline: how many there are.
    """
    return bool(every) and update <= offline and (update % (every or 1) == 0 or update == offline)


def following(now: int, every: int | None) -> int:
    """Return the next multiple of `every` after `now`, so that a resumed run keeps the rhythm; None or 0 = never."""
    return (now // every + 1) * every if every else NEVER

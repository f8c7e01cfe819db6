"""Where episodes can come from: files of rlrun and of Emote, datasets of Minari."""

from __future__ import annotations

from pathlib import Path

from rlrun.memory import archive, emote, files, minari
from rlrun.memory.episodes import Episode, add_all, fit
from rlrun.memory.table import Table

MINARI = "minari:"


def take_in(table: Table, source: str, *, append: bool = False, ignore_extra: bool = False) -> bool:
    """Fill a table from a file that rlrun or Emote (V1) stored, or from `minari:DATASET`.

    Args:
        table: what it holds is replaced.
        source: whatever it comes from.
        append: keep what the table holds, and add to it.
        ignore_extra: leave out columns that the table does not have, in place of refusing them.

    Returns:
        Whether the table is in the very state that was stored, sampler and ejector included.

    Raises:
        RequestError: the source is missing or damaged, or does not fit; the table is as it was before.
    """
    episodes = episodes_in(source)
    if episodes is None:
        return files.restore(table, Path(source).expanduser(), append=append, ignore_extra=ignore_extra)
    add_all(table, [fit(table, episode, source, ignore_extra=ignore_extra) for episode in episodes], append=append)
    return False


def episodes_in(source: str) -> list[Episode] | None:
    """Return the episodes of a file that Emote (V1) stored, or of `minari:DATASET`; None for any other file."""
    if source.startswith(MINARI):
        return minari.read(source.removeprefix(MINARI))
    path = Path(source).expanduser()
    return emote.read(path) if not archive.is_sealed(path) and emote.is_v1(path) else None

"""What runs of before took that cost the same; nothing of what is read is executed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rlrun.errors import ConfigError
from rlrun.estimate.model import Cost
from rlrun.estimate.shapes import Shape, shape_of
from rlrun.lineup import ls

PLACES = ("runs", "sweeps")
NEWEST = 5  # runs of a shape


def known_costs(shapes: Sequence[Shape], places: Iterable[Path | str] = PLACES) -> list[Cost | None]:
    """Return for each shape the mean of the newest completed runs with the same words, or None where there are none.

    places: folders beneath which to look; those that do not exist have none.
    """
    wanted = {shape.words: list[Cost]() for shape in shapes}
    runs = [run for place in map(Path, places) if place.is_dir() for run in ls(place, status="completed")]
    for run in sorted(runs, key=lambda run: run["created"] or "", reverse=True):
        costs = wanted.get(_shape(run["words"]))
        if costs is not None and len(costs) < NEWEST and _took(run):
            costs.append(Cost(float(run["seconds"]), _size(Path(run["path"]))))
    return [Cost.mean(costs) if (costs := wanted[shape.words]) else None for shape in shapes]


def _shape(words: Sequence[str]) -> tuple[str, ...]:
    try:
        return shape_of(words)
    except ConfigError:  # a file of words that nobody typed
        return ("",)


def _took(run: dict[str, Any]) -> bool:
    return run["seconds"] is not None and math.isfinite(run["seconds"])


def _size(path: Path) -> int:
    return sum(file.lstat().st_size for file in path.rglob("*") if file.is_file())

"""Where learners keep what is theirs."""

from __future__ import annotations

from pathlib import Path


def place_of(checkpoints: Path, number: int) -> Path:
    """Return the folder in which a learner, from 0, has its checkpoints: the first one where every run has them."""
    return checkpoints / f"learner-{number}" if number else checkpoints


def places_in(checkpoints: Path) -> list[Path]:
    """Return the folders of all learners, the first one's first."""
    return [checkpoints, *sorted(path for path in checkpoints.glob("learner-*") if not path.is_symlink())]

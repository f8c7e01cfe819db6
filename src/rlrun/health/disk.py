"""Whether runs can be written, and how much there is room for."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rlrun.files import reason, sized
from rlrun.health.findings import Finding

LITTLE = 1_000_000_000  # bytes; a replay memory of pictures takes more
TOO_LITTLE = 50_000_000  # checkpoints of small networks, some of them at a time
SHARED = Path("/dev/shm")
SHARED_LITTLE = 100_000_000


def findings(folder: Path) -> Iterator[Finding]:
    """Tell of the disk on which runs are written, and of the memory that processes share."""
    yield _room(_existing(folder))
    yield _runs(_existing(folder / "runs"))
    if SHARED.is_dir():
        free = shutil.disk_usage(SHARED).free
        remedy = "of a container: --shm-size=1g" if free < SHARED_LITTLE else None
        text = f"{_usage(SHARED)}{'; Ray keeps there what its processes share' if remedy else ''}"
        yield Finding("note" if remedy else "ok", "disk", str(SHARED), text, remedy)


def _room(folder: Path) -> Finding:
    free, place = shutil.disk_usage(folder).free, str(folder.absolute())
    if free < TOO_LITTLE:
        return Finding("problem", "disk", place, _usage(folder), "make room, or train elsewhere: --run-dir DIR")
    if free < LITTLE:
        return Finding("note", "disk", place, _usage(folder), "checkpoint.memory=false keeps checkpoints small")
    return Finding("ok", "disk", place, _usage(folder))


def _existing(folder: Path) -> Path:
    """Return a folder, or the one above in which it would be made."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


def _runs(place: Path) -> Finding:
    """Try to write where runs go by default."""
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"x")
    except OSError as error:
        text = f"{place} cannot be written: {reason(error)}"
        return Finding("problem", "disk", "runs/", text, "stand in another folder, or say --run-dir DIR")
    return Finding("ok", "disk", "runs/", "can be written")


def _usage(folder: Path) -> str:
    usage = shutil.disk_usage(folder)
    return f"{sized(usage.free)} of {sized(usage.total)} free"

"""What can be told of a run at work from its files."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from rlrun.errors import RunDirError
from rlrun.files import open_regular
from rlrun.rundir import SILENT, RunDir

TAIL = 16_384  # bytes


def last_line(path: Path) -> str | None:
    """Return the last line of a log that says something."""
    lines = [line.strip() for line in _tail(path).splitlines()]
    found = next((line.removeprefix("rlrun: ") for line in reversed(lines) if line), None)
    return None if found is None else printable(found)


def printable(text: str) -> str:
    """Return a text without what would steer a terminal: it may be somebody else's."""
    return "".join(each if each.isprintable() else "?" for each in text)


def progress(metrics: Path) -> dict[str, float]:
    """Return the newest values of a run's metrics, as far as they stand near the end of the file."""
    found: dict[str, float] = {}
    for line in _tail(metrics).splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):  # cut off by the beginning of the tail, or being written
            continue
        if isinstance(record, dict):
            found |= {name: value for name, value in record.items() if isinstance(value, int | float)}
    return found


def quiet_for(run: RunDir, log: Path, *, since: float, stall: float | None) -> str | None:
    """Say for how long a job at work has given no sign of life, if that is too long.

    since: when its process was started, seconds since 1970.
    stall: seconds without a further line of metrics, a checkpoint or a message; None = any.
    """
    now = time.time()
    silent = now - max(since, _changed(run.status))
    if silent > SILENT:
        return f"no sign of life for {silent:.0f} s"
    if stall is not None:
        idle = now - max(since, *map(_changed, (run.metrics, run.checkpoints, log)))
        if idle > stall:
            return f"no progress for {idle:.0f} s"
    return None


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _tail(path: Path) -> str:
    try:
        with os.fdopen(open_regular(path, follow=True), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            return file.read(TAIL).decode(errors="replace")
    except (OSError, RunDirError):
        return ""

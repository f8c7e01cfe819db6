"""Runs and their results; the Python equivalent of `rlrun ls`. Nothing of what it reads is executed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rlrun.core.errors import RequestError, RlrunError, RunDirError, did_you_mean
from rlrun.runs.directory import RunDir, runs_beneath
from rlrun.runs.files import known, place_of
from rlrun.runs.progress import progress

NUMBER = re.compile(r"(?<==)[-+]?(?:\d+(?:_\d+)*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?(?![\w.])")
STATUSES = ("running", "completed", "failed", "stopped", "interrupted")
SORTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "path": lambda run: run["path"],
    "created": lambda run: run["created"] or "",
    "status": lambda run: STATUSES.index(run["status"]),
    "steps": lambda run: _last(run["env_steps"]),
    "return": lambda run: _last(run["objective"]),
    "seconds": lambda run: _last(run["seconds"]),
}


def ls(
    folder: Path | str = ".", *, status: str | None = None, match: Iterable[str] = (), sort: str = "path"
) -> list[dict[str, Any]]:
    """Return what is known of each run in a folder and beneath it.

    Args:
        folder: of one run, of a sweep, or above several.
        status: only runs of this.
        match: only runs whose path or overrides hold each of these texts; a number behind `=` in any spelling.
        sort: by which of `SORTS`; steps, returns and seconds from the largest.

    Returns:
        The content of each `summary.json`, as far as there is one, with `path`, `status`, `created` and `overrides`; of
        runs that have not ended, the newest figures of their metrics.

    Raises:
        RequestError: there is no such folder, status or order.
    """
    place = place_of(folder)
    if not place.is_dir():
        raise RunDirError(f"{place} does not exist" if not place.exists() else f"{place} is a file, no folder of runs")
    if status is not None and status not in STATUSES:
        raise RequestError(f"--status {status}: wanted one of {', '.join(STATUSES)}{did_you_mean(status, STATUSES)}")
    if sort not in SORTS:
        raise RequestError(f"--sort {sort}: wanted one of {', '.join(SORTS)}{did_you_mean(sort, SORTS)}")
    runs = [about(run) for run in runs_beneath(place)]
    wanted = [text for text in match if text]
    matching = [
        run
        for run in runs
        if status in (None, run["status"])
        and all(_holds(" ".join([run["path"], *run["overrides"]]), text) for text in wanted)
    ]
    return sorted(matching, key=SORTS[sort])


def about(run: RunDir) -> dict[str, Any]:
    """Return what is known of a run; a file that is missing or damaged leaves its values out."""
    summary, manifest = known(run.summary), known(run.manifest)
    if not summary:
        newest = progress(run.metrics)
        value = newest.get("evaluation/mean_return")
        summary = {name: newest.get(name) for name in ("env_steps", "updates", "seconds")} | {"objective": value}
    figures = {name: _number(summary.get(name)) for name in ("env_steps", "updates", "seconds", "objective")}
    created = manifest.get("created")
    return {
        **summary,
        **figures,
        "path": str(run.path),
        "status": run.read_status()["status"],
        "created": created if isinstance(created, str) else None,
        "overrides": _overrides(run),
    }


def _holds(content: str, text: str) -> bool:
    """Return True if a text is part of another, as it is or with all numbers behind `=` in one spelling."""
    spelled = [NUMBER.sub(lambda number: repr(float(number[0])), part) for part in (text, content)]
    return text in content or spelled[0] in spelled[1]


def _overrides(run: RunDir) -> list[str]:
    try:
        return run.read_overrides()
    except RlrunError:
        return []


def _number(value: Any) -> int | float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _last(value: int | float | None) -> tuple[bool, float]:
    """Order numbers from the largest, and what is not known behind them."""
    return value is None, -float(value or 0.0)

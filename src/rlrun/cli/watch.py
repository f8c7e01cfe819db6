"""`rlrun watch`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rlrun.commands.watch import WatchedRun


def watch(
    folder: Annotated[Path, typer.Argument(help="A run, a sweep, or a folder that contains some.")] = Path("."),
    metric: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only metrics whose names contain this text; may be repeated."),
    ] = None,
    every: Annotated[float, typer.Option(help="Seconds between two frames.", min=0.1)] = 2.0,
) -> None:
    """Watch runs while they train: curves, speed, time to go, where time goes, jobs. q leaves, arrows choose."""
    from rlrun.commands import watch as watching
    from rlrun.sweep.job_store import JOB_STORE

    jobs = (lambda: _jobs(folder)) if (folder / JOB_STORE).is_file() else watching.runs_in(folder)
    watching.watch(jobs, metrics=metric or (), every=every)


def _jobs(folder: Path) -> list[WatchedRun]:
    """Return the jobs of a sweep."""
    from rlrun.commands.watch import WatchedRun
    from rlrun.runs.directory import RunDir
    from rlrun.sweep.job_store import JOB_STORE, look, place_of

    entries = look(folder / JOB_STORE)
    return [
        WatchedRun(
            RunDir(folder / place_of(entry)),
            f"{entry.key} {entry.label or ' '.join(entry.overrides)}",
            entry.state,
            entry.error or "",
        )
        for entry in entries
    ]

"""`rlrun watch`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlrun import commands

if TYPE_CHECKING:
    from rlrun.commands.watch import WatchedRun
    from rlrun.sweep.directory import SweepDir


def watch(
    folder: Annotated[Path, typer.Argument(help="A run, a sweep, or a folder that contains some.")] = Path("."),
    metric: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only metrics whose names contain this text; may be repeated."),
    ] = None,
    every: Annotated[float, typer.Option(help="Seconds between two frames.", min=0.1)] = 2.0,
) -> None:
    """Watch runs while they train: curves, speed, time to go, where time goes, jobs. q leaves, arrows choose."""
    from rlrun.sweep.directory import SweepDir

    sweep = SweepDir(folder)
    jobs = (lambda: _jobs(sweep)) if sweep.list.is_file() else commands.watch.runs_in(folder)
    commands.watch.watch(jobs, metrics=metric or (), every=every)


def _jobs(sweep: SweepDir) -> list[WatchedRun]:
    """Return the jobs of a sweep."""
    return [
        commands.watch.WatchedRun(
            sweep.run(job), f"{job.key} {job.label or ' '.join(job.overrides)}", state, error or ""
        )
        for job, state, _, error in sweep.statuses()
    ]

"""`rlrun checkpoints`."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import rlrun
from rlrun import commands
from rlrun.cli.common import AsJson, print_json
from rlrun.core.errors import RunDirError, printable
from rlrun.core.files import aligned, counted, sized

if TYPE_CHECKING:
    from rlrun.commands.checkpoints import CheckpointReport

HEADS = ("step", "updates", "return", "own", "whole", "made", "mark", "parts", "")
LEFT = ("mark", "parts", "")


def checkpoints(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare every file with its hash; exit code 2 if one differs.")
    ] = False,
    parts: Annotated[bool, typer.Option("--parts", help="List all parts.")] = False,
    no_digest: Annotated[
        bool, typer.Option("--no-digest", help="With --json: no digest of each part, for which every byte is read.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the checkpoints of a run: step, return, size, parts. This changes nothing and runs no code of the run."""
    reports = rlrun.checkpoints(run, verify=verify, digest=as_json and not no_digest)
    if as_json:
        print_json([report.to_json() for report in reports])
    elif not reports:
        typer.echo(f"{run} has no checkpoints")
    else:
        for line in aligned([HEADS, *(cells(report, names=parts, verified=verify) for report in reports)], left=LEFT):
            typer.echo(printable(line))
        typer.echo(f"{counted(len(reports), 'checkpoint')}, {sized(commands.checkpoints.disk_used(run))} on disk")
    damaged = [report for report in reports if report.damage]
    if verify and damaged:
        good = commands.checkpoints.newest_whole(run, reports)
        way_out = "none is left to resume from" if good is None else f"resume takes the newest good one, {good}"
        verb = "is" if len(damaged) == 1 else "are"
        raise RunDirError(f"{run}: {len(damaged)} of {counted(len(reports), 'checkpoint')} {verb} damaged; {way_out}")


def cells(report: CheckpointReport, *, names: bool, verified: bool) -> list[str]:
    """Return the cells of a checkpoint's line."""
    marks = [mark for mark in ("latest", "best") if getattr(report, mark)]
    evaluation = report.evaluation or {}
    fresh = evaluation.get("env_steps") in (report.env_steps, 0)  # 0: no environment is stepped
    mean = evaluation.get("mean_return", evaluation.get("objective")) if fresh else None
    state = f"damaged: {_first(report)}" if report.damage else "ok" if verified else ""
    return [
        f"{report.env_steps:_}",
        f"{report.updates:_}",
        "-" if mean is None else f"{mean:.2f}",
        sized(report.size),
        sized(report.size_with_shared),
        _local(report.created or "-"),
        " ".join(marks),
        ", ".join(report.parts) if names else str(len(report.parts)),
        state,
    ]


def _local(time: str) -> str:
    """Return a time in the local time zone; a text that is not a time is returned unchanged."""
    try:
        return f"{datetime.fromisoformat(time).astimezone():%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError):
        return time


def _first(report: CheckpointReport) -> str:
    """Return the first damage, without the folder of all checkpoints."""
    message = report.damage[0].replace(f"{report.path.parent}/", "").replace(" is damaged: ", ": ", 1)
    return f"{message} (and {len(report.damage) - 1} more)" if len(report.damage) > 1 else message

"""`rlrun ls`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import rlrun
from rlrun.cli.common import AsJson, print_json
from rlrun.core.errors import printable
from rlrun.core.files import aligned, counted

if TYPE_CHECKING:
    from rlrun.commands.ls import RunRow

HEAD = ("run", "status", "steps", "return", "overrides")


def ls(
    folder: Annotated[Path, typer.Argument(help="A run, a sweep, or a folder that contains some.")] = Path("."),
    status: Annotated[
        str | None,
        typer.Option(help="Only running, completed, failed, stopped, pruned or interrupted runs."),
    ] = None,
    match: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="Only runs whose path or overrides contain this text; may be repeated.",
        ),
    ] = None,
    sort: Annotated[str, typer.Option(help="Sort by path, created, status, steps, return or seconds.")] = "path",
    as_json: AsJson = False,
) -> None:
    """List runs: status, steps, return and overrides."""
    runs = rlrun.ls(folder, status=status, match=match or [], sort=sort)
    if as_json:
        print_json([run.to_json() for run in runs])
        return
    for line in aligned([HEAD, *map(_row, runs)], left=("run", "status", "overrides")) if runs else ():
        typer.echo(line)
    typer.echo(counted(len(runs), "run"), err=True)


def _row(run: RunRow) -> tuple[str, str, str, str, str]:
    path, cwd = Path(run.path), Path.cwd()
    steps, value = run.env_steps or run.updates, run.objective
    return (
        printable(str(path.relative_to(cwd)) if path.is_relative_to(cwd) else str(path)),
        run.status,
        f"{steps:,}" if steps else "",
        "" if value is None else f"{value:.2f}",
        printable(" ".join(run.overrides)),
    )

"""`rlrun resume`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlrun.cli.telling import show
from rlrun.cli.words import Trust


def resume(
    run: Annotated[Path, typer.Argument(help="A run directory.", show_default=False)],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[OVERRIDE]...",
            help="stop.env_steps=200_000 extends the budget; evaluation, checkpoint, logger, log, memory.export, "
            "device, threads and env.vectorization can change, too.",
            show_default=False,
        ),
    ] = None,
    trust: Trust = None,
) -> None:
    """Go on with a run that was stopped, killed or failed, from its newest good checkpoint."""
    from rlrun import resuming
    from rlrun.errors import Left

    show("rlrun.told")
    try:
        result = resuming.resume(run, words or [], trust=trust or [])
    except Left as error:
        raise typer.Exit(75) from error
    typer.echo(result.describe())
    if result.trainer is None:
        typer.echo(
            f"the run is finished at {result.summary['env_steps']:,} steps; stop.env_steps=… beyond that extends it",
            err=True,
        )
    if result.summary["status"] == "stopped":
        raise typer.Exit(75)

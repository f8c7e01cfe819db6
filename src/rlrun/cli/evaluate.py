"""`rlrun eval`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rlrun.cli.words import Trust


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run directory.", show_default=False)],
    episodes: Annotated[int, typer.Option(help="How many.", min=1)] = 20,
    seed: Annotated[int, typer.Option(help="Episode i starts with reset(seed=seed + i).", min=0)] = 0,
    checkpoint: Annotated[str, typer.Option(help="latest, best or a number of steps.")] = "latest",
    stochastic: Annotated[bool, typer.Option("--stochastic", help="Sample actions as in training.")] = False,
    video: Annotated[
        Path | None, typer.Option(help="Write a video of each episode into this folder.", show_default=False)
    ] = None,
    trust: Trust = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Play episodes with the frozen policy of a run."""
    from rlrun import evaluation

    report = evaluation.evaluate(
        run,
        episodes=episodes,
        seed=seed,
        checkpoint=checkpoint,
        stochastic=stochastic,
        video=video,
        trust=trust or [],
    )
    typer.echo(json.dumps(report.to_json()) if as_json else report.describe())

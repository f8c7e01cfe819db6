"""`rlrun train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlrun.cli.words import ConfigDir, Words


def train(
    words: Words = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Where the run goes (default: runs/<algorithm>-<env>/…).", show_default=False)
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Build everything, print the data flow, step nothing.")
    ] = False,
    config_dir: ConfigDir = None,
) -> None:
    """Train an agent: rlrun train algorithm=sac env=cartpole seed=3"""
    from rlrun.config import compose

    composed = compose(words or [], config_dir=config_dir)  # what is wrong with a word is told before torch is loaded
    from rlrun import experiment

    if dry_run:
        typer.echo(experiment.explain(composed))
        return
    result = experiment.train(composed, run_dir=run_dir)
    typer.echo(result.describe())
    if result.summary["status"] == "stopped":
        raise typer.Exit(75)

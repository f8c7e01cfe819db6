"""`rlrun play`."""

from pathlib import Path
from typing import Annotated

import typer

import rlrun
from rlrun.cli.common import EnvOverrides, FirstSeed, Trust


def play(
    run: Annotated[Path, typer.Argument(help="A run directory, or an exported FILE.onnx.")],
    overrides: EnvOverrides = None,
    episodes: Annotated[int, typer.Option(help="Number of episodes.", min=1)] = 5,
    seed: FirstSeed = 0,
    checkpoint: Annotated[str, typer.Option(help="latest, best or a number of steps.")] = "latest",
    stochastic: Annotated[bool, typer.Option("--stochastic", help="Sample actions as in training.")] = False,
    text: Annotated[
        bool, typer.Option("--text", help="Print text in the terminal; this is automatic without a display.")
    ] = False,
    person: Annotated[
        bool, typer.Option("--person", help="A game against you in the terminal, by typed moves.")
    ] = False,
    tree: Annotated[
        Path | None, typer.Option(help="Write a picture of the first search to FILE.svg, of a policy that searches.")
    ] = None,
    fps: Annotated[
        float | None,
        typer.Option(help="Steps a second (default: the environment's own rate).", min=0.01),
    ] = None,
    trust: Trust = False,
) -> None:
    """Watch episodes of a run's policy, in a window or as text, or play a game against it."""
    rlrun.play(
        run,
        episodes=episodes,
        seed=seed,
        checkpoint=checkpoint,
        stochastic=stochastic,
        text=text,
        person=person,
        tree=tree,
        fps=fps,
        trust=trust,
        overrides=overrides or [],
        say=typer.echo,
    )

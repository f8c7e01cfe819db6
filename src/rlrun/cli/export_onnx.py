"""`rlrun export-onnx`."""

from pathlib import Path
from typing import Annotated

import typer

import rlrun
from rlrun.cli.common import AsJson, Network, Trust, print_json
from rlrun.core.errors import printable


def export_onnx(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    output: Annotated[
        Path | None,
        typer.Option(help="Path of the file (default: exports/policy.onnx of the run)."),
    ] = None,
    checkpoint: Annotated[str, typer.Option(help="latest, best or a number of steps.")] = "latest",
    stochastic: Annotated[
        bool, typer.Option("--stochastic", help="Sample actions from noise that is an input.")
    ] = False,
    seed: Annotated[
        int, typer.Option(help="Seed of the episode whose observations prove equality.", min=0, max=2**62)
    ] = 0,
    network: Network = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Export the policy of a run, or a network, as a file that runs without rlrun, and prove that it acts the same."""
    export = rlrun.export_onnx(
        run,
        output,
        checkpoint=checkpoint,
        stochastic=stochastic,
        seed=seed,
        network=network,
        trust=trust,
    )
    if as_json:
        print_json({"path": export.path, **export.about})
    else:
        for line in export.describe().splitlines():
            typer.echo(printable(line))

"""`rlrun explain`."""

from typing import Annotated

import typer

from rlrun.cli.common import ConfigDir, Overrides, print_presets


def explain(
    overrides: Overrides = None,
    update: Annotated[bool, typer.Option("--update", help="Print the generated code of an update instead.")] = False,
    config_dir: ConfigDir = None,
) -> None:
    """Print the data flow of one update: who reads and provides each name, and which loss trains which network."""
    from rlrun.config import compose

    composed = compose(overrides or [], config_dir=config_dir)
    from rlrun.commands import train as experiment

    typer.echo(experiment.explain(composed, update=update))
    print_presets(composed.preset)

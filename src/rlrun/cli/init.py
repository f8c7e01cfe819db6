"""`rlrun init`."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

import rlrun
from rlrun.cli.common import AsJson, print_json


def init(
    folder: Annotated[Path, typer.Argument(help="A new or empty folder; its name is also the package's name.")],
    as_json: AsJson = False,
) -> None:
    """Make a project with its own environment, network, loss, configuration and tests; it trains at once."""
    place = rlrun.init(folder)
    prefix = "" if place == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
    if as_json:
        print_json({"path": place})
    else:
        typer.echo(str(place))
    typer.echo(f"{prefix}rlrun train preset=catch; see its README.md", err=True)

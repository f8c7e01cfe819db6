"""`rlrun upload`."""

from pathlib import Path
from typing import Annotated

import typer

import rlrun
from rlrun.cli.common import AsJson, print_json
from rlrun.core.files import counted


def upload(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    to: Annotated[str, typer.Option(help="wandb (online unless WANDB_MODE says otherwise) or mlflow.")],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[SETTING]...", help="Of the logger: project=mine entity=team …")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Send all metrics of a run to a service, as a new run there; this runs no code of the run."""
    records = rlrun.upload(run, to, settings or [])
    if as_json:
        print_json({"run": str(run.absolute()), "to": to, "records": records})
    else:
        typer.echo(f"{counted(records, 'record')} sent to {to}")

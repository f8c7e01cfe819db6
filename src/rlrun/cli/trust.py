"""`rlrun trust`."""

from typing import Annotated

import typer

from rlrun.cli.common import AsJson, print_json
from rlrun.runs import trust as trusted


def trust(
    folders: Annotated[list[str] | None, typer.Argument(metavar="[DIR]...", help="Folders to trust.")] = None,
    as_json: AsJson = False,
) -> None:
    """Trust all runs below a folder, now and later; print the folders that are trusted."""
    for folder in folders or ():
        trusted.trust(folder)
    known = [str(folder) for folder in trusted.folders()]
    print_json({"folders": known}) if as_json else typer.echo("".join(f"{folder}\n" for folder in known), nl=False)

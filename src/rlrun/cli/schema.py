"""`rlrun schema`."""

import json
from pathlib import Path
from typing import Annotated

import typer

import rlrun
from rlrun import config as configuration
from rlrun.cli.common import AsJson, ConfigDir, print_json

OUTPUTS = Path(__file__).with_name("outputs.yaml")


def schema(
    config_dir: ConfigDir = None,
    outputs: Annotated[
        bool, typer.Option("--outputs", help="Print the JSON schema of each command's --json instead.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write JSON schemas of your config files, by which an editor completes and underlines them."""
    if outputs:
        value = configuration.read_yaml(OUTPUTS)
        print_json(value) if as_json else typer.echo(json.dumps(value, indent=1))
        return
    paths = rlrun.schema(config_dir)
    if as_json:
        print_json(paths)
        return
    for path in paths:
        typer.echo(str(path))
    typer.echo("a file's line for editors: # yaml-language-server: $schema=../.schema/train.json", err=True)

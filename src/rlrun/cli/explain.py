"""`rlrun explain`."""

from typing import Annotated

import typer

from rlrun import config as configuration
from rlrun.cli.common import AsJson, ConfigDir, ConfigName, Overrides, named, print_data_flow, print_networks


def explain(
    overrides: Overrides = None,
    update: Annotated[bool, typer.Option("--update", help="Print the generated code of an update instead.")] = False,
    networks: Annotated[bool, typer.Option("--networks", help="Print the layers of each network instead.")] = False,
    config_name: ConfigName = None,
    config_dir: ConfigDir = None,
    as_json: AsJson = False,
) -> None:
    """Print the data flow of one update: who reads and provides each name, and which loss trains which network."""
    composed = configuration.compose(named(config_name, overrides), config_dir=config_dir)
    if networks:
        print_networks(composed, as_json=as_json)
    else:
        print_data_flow(composed, update=update, as_json=as_json)

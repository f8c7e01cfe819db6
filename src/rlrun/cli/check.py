"""`rlrun check`."""

from typing import Annotated

import typer

from rlrun import commands
from rlrun import config as configuration
from rlrun.cli.common import AsJson, ConfigDir, ConfigName, Overrides, named, print_json, print_presets

Replay = Annotated[bool, typer.Option("--replay", help="Play one episode twice: would a resume be exact?")]


def check(
    overrides: Overrides = None,
    replay: Replay = False,
    config_name: ConfigName = None,
    config_dir: ConfigDir = None,
    as_json: AsJson = False,
) -> None:
    """Check a config without training: keys, targets, wiring, spaces, memory, disk."""
    composed = configuration.compose(named(config_name, overrides), config_dir=config_dir)
    lines = commands.check.check(composed, replay=replay)
    if as_json:
        print_json([dict(zip(("part", "result"), line.split(maxsplit=1), strict=True)) for line in lines])
    else:
        typer.echo("\n".join(lines))
    print_presets(composed.preset)

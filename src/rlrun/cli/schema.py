"""`rlrun schema`."""

import typer

from rlrun.cli.common import ConfigDir


def schema(config_dir: ConfigDir = None) -> None:
    """Write JSON schemas of your config files, by which an editor completes and underlines them."""
    from rlrun.commands.schema import schema as write

    for path in write(config_dir):
        typer.echo(str(path))
    typer.echo("a file's line for editors: # yaml-language-server: $schema=../.schema/train.json", err=True)

"""`rlrun check`."""

import typer

from rlrun.cli.common import ConfigDir, Overrides, print_presets


def check(overrides: Overrides = None, config_dir: ConfigDir = None) -> None:
    """Check a config without training: keys, targets, wiring, spaces, memory, disk."""
    from rlrun.config import compose

    composed = compose(overrides or [], config_dir=config_dir)
    from rlrun.commands import check as checking

    for line in checking.check(composed):
        typer.echo(line)
    print_presets(composed.preset)

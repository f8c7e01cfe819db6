"""`rlrun explain`."""

from __future__ import annotations

import typer

from rlrun.cli.telling import tell_presets
from rlrun.cli.words import ConfigDir, Words


def explain(words: Words = None, config_dir: ConfigDir = None) -> None:
    """Print the data flow of one update: who asks for what, who provides it, who trains which network."""
    from rlrun.config import compose

    composed = compose(words or [], config_dir=config_dir)
    from rlrun import experiment

    typer.echo(experiment.explain(composed))
    tell_presets(composed.preset)

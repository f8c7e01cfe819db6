"""`rlrun list`."""

from __future__ import annotations

from typing import Annotated

import typer

from rlrun.cli.words import ConfigDir

KINDS = {
    "algorithms": "algorithm",
    "envs": "env",
    "memories": "memory",
    "with": "with",
    "experiments": "experiment",
}


def listing(
    kind: Annotated[
        str | None,
        typer.Argument(help="algorithms, envs, memories, with or experiments.", show_default=False),
    ] = None,
    config_dir: ConfigDir = None,
) -> None:
    """List what there is, one line each."""
    from rlrun.config import choices
    from rlrun.errors import ConfigError, did_you_mean

    if kind is not None and kind not in KINDS:
        raise ConfigError(f"list {kind}: there are {', '.join(KINDS)}{did_you_mean(kind, KINDS)}")
    for name, group in KINDS.items():
        if kind not in (None, name):
            continue
        found = choices(group, config_dir)
        if kind is None and found:
            typer.echo(f"{name} ({group}=…)")
        width = max(map(len, found), default=0)
        for choice, line in found.items():
            typer.echo(f"{'' if kind else '  '}{choice.ljust(width)}  {line}")

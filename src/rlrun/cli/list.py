"""`rlrun list`."""

from typing import Annotated

import typer

from rlrun.cli.common import ConfigDir
from rlrun.core.errors import ConfigError, did_you_mean, printable

KINDS = {
    "algorithms": "algorithm",
    "envs": "env",
    "memories": "memory",
    "with": "with",
    "presets": "preset",
}


def listing(
    kind: Annotated[
        str | None,
        typer.Argument(help="algorithms, envs, memories, with or presets.", show_default=False),
    ] = None,
    config_dir: ConfigDir = None,
) -> None:
    """List all choices, one line each, with the origin of those that are not rlrun's own."""
    from rlrun.config.places import offers, readable_places

    if kind is not None and kind not in KINDS:
        raise ConfigError(f"list {kind}: there are {', '.join(KINDS)}{did_you_mean(kind, KINDS)}")
    places = readable_places(config_dir)
    for name, group in KINDS.items():
        if kind not in (None, name):
            continue
        options = offers(group, places)
        if kind is None and options:
            typer.echo(f"{name} ({group}=…)")
        width = max(map(len, options), default=0)
        for choice, (line, place) in options.items():
            origin = f" ({place.owner})" if place.owner else ""
            typer.echo(printable(f"{'' if kind else '  '}{choice.ljust(width)}  {line}{origin}".rstrip()))

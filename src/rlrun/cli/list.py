"""`rlrun list`."""

from typing import Annotated

import typer

from rlrun import config as configuration
from rlrun.cli.common import AsJson, ConfigDir, print_json
from rlrun.core.errors import ConfigError, did_you_mean, printable

KINDS = {
    "algorithms": "algorithm",
    "envs": "env",
    "memories": "memory",
    "encoders": "encoder",
    "optimizers": "optimizer",
    "with": "with",
    "presets": "preset",
}


def list(
    kind: Annotated[
        str | None,
        typer.Argument(help="algorithms, envs, memories, encoders, optimizers, with or presets."),
    ] = None,
    config_dir: ConfigDir = None,
    as_json: AsJson = False,
) -> None:
    """List all choices, one line each, with the origin of those that are not rlrun's own."""
    if kind is not None and kind not in KINDS:
        raise ConfigError(f"list {kind}: there are {', '.join(KINDS)}{did_you_mean(kind, KINDS)}")
    places = configuration.readable_places(config_dir)
    kinds = {name: configuration.offers(group, places) for name, group in KINDS.items() if kind in (None, name)}
    if as_json:
        print_json(
            [
                {"kind": name, "group": KINDS[name], "choice": choice, "text": line, "origin": place.owner or "rlrun"}
                for name, options in kinds.items()
                for choice, (line, place) in options.items()
            ]
        )
        return
    for name, options in kinds.items():
        if kind is None and options:
            typer.echo(f"{name} ({KINDS[name]}=…)")
        width = max(map(len, options), default=0)
        for choice, (line, place) in options.items():
            origin = f" ({place.owner})" if place.owner else ""
            typer.echo(printable(f"{'' if kind else '  '}{choice.ljust(width)}  {line}{origin}".rstrip()))

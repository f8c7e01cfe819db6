"""`rlrun config`."""

import json
from typing import Annotated

import typer

from rlrun.cli.common import AsJson, ConfigDir, Overrides, print_json


def config(
    overrides: Overrides = None,
    resolve: Annotated[bool, typer.Option("--resolve", help="Replace interpolations by their values.")] = False,
    package: Annotated[str | None, typer.Option(help="Only this part, such as algorithm.")] = None,
    provenance: Annotated[bool, typer.Option("--provenance", help="Print each key = value   # file.")] = False,
    config_dir: ConfigDir = None,
    as_json: AsJson = False,
) -> None:
    """Print the composed YAML after a check of keys, choices and interpolations."""
    from rlrun import config as configuration

    composed = configuration.compose(overrides or [], config_dir=config_dir)
    if provenance:
        from rlrun.config.interpolation import dotted, leaves, plain

        values = {dotted(path): value for path, value in leaves(plain(composed.config))}
        sources = {
            key: source
            for key, source in configuration.provenance(composed).items()
            if package is None or key == package or key.startswith(f"{package}.")
        }
        if as_json:
            print_json({key: {"value": values[key], "set_by": source} for key, source in sources.items()})
            return
        for key, source in sources.items():
            value = values[key] if isinstance(values[key], str) else json.dumps(values[key], default=str)
            typer.echo(f"{key} = {value}   # {source}")
        return
    if as_json:
        print_json(configuration.select(composed.config, resolve=resolve, package=package))
        return
    typer.echo(configuration.to_yaml(composed.config, resolve=resolve, package=package), nl=False)

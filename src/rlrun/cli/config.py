"""`rlrun config`."""

import json
from typing import Annotated

import typer

from rlrun import config as configuration
from rlrun.cli.common import (
    AsJson,
    ConfigDir,
    ConfigName,
    Info,
    Overrides,
    Package,
    Resolve,
    named,
    print_config,
    print_files,
    print_json,
)


def config(
    overrides: Overrides = None,
    resolve: Resolve = False,
    package: Package = None,
    provenance: Annotated[bool, typer.Option("--provenance", help="Print each key = value   # file.")] = False,
    info: Info = None,
    config_name: ConfigName = None,
    config_dir: ConfigDir = None,
    as_json: AsJson = False,
) -> None:
    """Print the composed YAML after a check of keys, choices and interpolations."""
    composed = configuration.compose(named(config_name, overrides), config_dir=config_dir)
    if info is not None:
        print_files(composed, info, as_json=as_json)
        return
    if provenance:
        keys = configuration.leaves(configuration.plain(composed.config))
        values = {configuration.dotted(path): value for path, value in keys}
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
    print_config(composed, resolve=resolve, package=package, as_json=as_json)

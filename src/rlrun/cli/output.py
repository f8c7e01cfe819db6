"""The option `--json`: standard output is one JSON value."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Annotated, Any

import typer

_values: list[Any] = []  # to print when the command ends


@contextmanager
def _only_json() -> Iterator[None]:
    """Send what the code of a run prints to standard error, also in child processes; print the value at the end."""
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
        while _values:
            from rlrun.runs.files import finite

            typer.echo(json.dumps(finite(_values.pop()), allow_nan=False, default=str))


def _begin(context: typer.Context, as_json: bool) -> bool:
    if as_json:
        context.with_resource(_only_json())
    return as_json


AsJson = Annotated[
    bool,
    typer.Option(
        "--json", help="Print one JSON value; `rlrun schema --outputs` prints its JSON schema.", callback=_begin
    ),
]


def print_json(value: Any) -> None:
    """Print the result of a command as JSON; numbers that are not finite become null, paths texts."""
    _values.append(value)

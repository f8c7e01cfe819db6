"""`rlrun query`."""

import csv
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

import rlrun
from rlrun.cli.common import AsJson, print_json, show
from rlrun.core.errors import RequestError, printable
from rlrun.core.files import aligned, counted


def query(
    sql: Annotated[str, typer.Argument(help="One SELECT over the tables runs, config and metrics.")],
    folder: Annotated[Path, typer.Argument(help="A run, a sweep, or a folder that contains some.")] = Path("."),
    as_csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values.")] = False,
    as_json: AsJson = False,
) -> None:
    """Ask runs by SQL: rlrun query "SELECT run, objective FROM runs ORDER BY objective DESC"."""
    if as_json and as_csv:
        raise RequestError("query: give one of --json and --csv")
    show("rlrun.output")
    result = rlrun.query(sql, folder)
    if as_json:
        print_json(result.to_json())
    elif as_csv:
        rows = [result.columns, *result.rows]
        if sys.stdout.isatty():
            rows = [[printable(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
        csv.writer(sys.stdout, lineterminator="\n").writerows(rows)
    else:
        columns = zip(result.columns, zip(*result.rows, strict=True), strict=False)  # empty without rows
        texts = [name for name, values in columns if any(isinstance(value, str) for value in values)]
        for line in aligned([result.columns, *(list(map(_cell, row)) for row in result.rows)], left=texts):
            typer.echo(line)
        typer.echo(counted(len(result.rows), "row"), err=True)


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else printable(str(value))

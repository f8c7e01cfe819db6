"""`rlrun doctor`."""

import json
from typing import Annotated

import typer

from rlrun.core.errors import printable


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """List what is installed and missing, with the remedy; exit code 1 if training would fail."""
    from rlrun.analysis.doctor import doctor as examine

    diagnosis = examine()
    if as_json:
        typer.echo(json.dumps(diagnosis.to_json(), indent=2))
    else:
        width = max(len(f"{finding.group} {finding.name}") for finding in diagnosis.findings)
        for finding in diagnosis.findings:
            place = f"{finding.group} {finding.name}".ljust(width)
            typer.echo(printable(f"{finding.status:<7}  {place}  {finding.describe()}"))
    raise typer.Exit(0 if diagnosis.healthy else 1)

"""`rlrun doctor`."""

import typer

import rlrun
from rlrun.cli.common import AsJson, print_json
from rlrun.core.errors import printable


def doctor(as_json: AsJson = False) -> None:
    """List what is installed and missing, with the remedy; exit code 1 if training would fail."""
    diagnosis = rlrun.doctor()
    if as_json:
        print_json(diagnosis.to_json())
    else:
        width = max(len(f"{finding.group} {finding.name}") for finding in diagnosis.findings)
        for finding in diagnosis.findings:
            place = f"{finding.group} {finding.name}".ljust(width)
            typer.echo(printable(f"{finding.status:<7}  {place}  {finding.describe()}"))
    raise typer.Exit(0 if diagnosis.healthy else 1)

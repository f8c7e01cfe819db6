"""`rlrun why`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import rlrun
from rlrun.cli.common import AsJson, print_json
from rlrun.core.errors import printable
from rlrun.core.files import counted

if TYPE_CHECKING:
    from rlrun.analysis.why import Diagnosis


def why(
    run: Annotated[Path, typer.Argument(help="A run directory; the run may be in progress.")],
    as_json: AsJson = False,
) -> None:
    """Explain why a run does not learn, by its metrics and config: the most likely cause first, with remedies."""
    diagnosis = rlrun.why(run)
    for line in diagnosis.damage:
        typer.echo(f"rlrun: {printable(line)}", err=True)
    if as_json:
        print_json(diagnosis.as_dict())
        return
    for line in _lines(diagnosis):
        typer.echo(printable(line))


def _lines(diagnosis: Diagnosis) -> list[str]:
    lines = []
    for number, finding in enumerate(diagnosis.findings, 1):
        lines += [f"{number}. {finding.cause}: {finding.reason}", f"   {finding.remedy}"]
    if not diagnosis.findings:
        unmade = f", {len(diagnosis.unmade)} could not be made for want of data" if diagnosis.unmade else ""
        lines.append(f"nothing stands out: {counted(diagnosis.checks, 'check')} made{unmade}")
    elif diagnosis.healthy:
        lines.append(f"ruled out: {', '.join(diagnosis.healthy)}")
    lines += diagnosis.notes
    if shares := sorted(diagnosis.time.items(), key=lambda item: -item[1]):
        lines.append("time: " + ", ".join(f"{share:.0%} {work}" for work, share in shares))
    if diagnosis.unmade:
        lines.append("not checked: " + "; ".join(f"{rule} (wants {data})" for rule, data in diagnosis.unmade.items()))
    return lines

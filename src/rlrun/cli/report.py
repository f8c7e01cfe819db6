"""`rlrun report`."""

from pathlib import Path
from typing import Annotated

import typer

import rlrun
from rlrun.cli.common import AsJson, print_json
from rlrun.core.errors import RequestError

OUTPUT = Path("-")


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", help="Runs, sweeps, or folders that contain some."),
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File of the page (default: report.html here).")
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Metric whose last value is a run's score (default: evaluation/mean_return)."
        ),
    ] = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help="Group runs by the value of this key, or by folder: their DIR; may be repeated (default: all "
            "overrides except seed and environment).",
        ),
    ] = None,
    bounds: Annotated[
        list[str] | None,
        typer.Option(metavar="TASK=LOW,HIGH", help="Scores of a task that count as 0 and 1; may be repeated."),
    ] = None,
    title: Annotated[str | None, typer.Option(metavar="TEXT", help="Title of the page.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap and permutation tests.")] = 0,
    resamples: Annotated[int, typer.Option(help="Number of resamples of these.")] = 10_000,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write one line a run; - prints it.")] = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the tables; - prints them.")] = None,
    svg: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write the figures.")] = None,
    png: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write the figures (extra: plots).")] = None,
    as_json: AsJson = False,
) -> None:
    """Write one page about many runs: curves, final scores with intervals, and tests of differences."""
    report = rlrun.report(
        *folders,
        out=out,
        metric=metric,
        by=by or [],
        bounds=dict(map(_bounds, bounds or [])),
        title=title,
        seed=seed,
        resamples=resamples,
        csv=None if csv == OUTPUT else csv,
        markdown=None if markdown == OUTPUT else markdown,
        svg=svg,
        png=png,
    )
    if as_json:
        print_json(report.to_json())
        return
    printed = [text for where, text in ((csv, report.csv), (markdown, report.markdown)) if where == OUTPUT]
    for text in printed:
        typer.echo(text, nl=False)
    typer.echo(report.verdict, err=True)
    typer.echo(report.path, err=bool(printed))


def _bounds(text: str) -> tuple[str, tuple[float, float]]:
    task, _, values = text.rpartition("=")
    try:
        low, high = map(float, values.split(","))
    except ValueError:
        raise RequestError(f"--bounds {text}: wanted TASK=LOW,HIGH, as in CartPole-v1=0,500") from None
    return task, (low, high)

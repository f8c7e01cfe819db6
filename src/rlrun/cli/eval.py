"""`rlrun eval`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import rlrun
from rlrun import commands
from rlrun.cli.common import AsJson, EnvOverrides, FirstSeed, Network, Trust, print_json
from rlrun.core.errors import RunDirError, printable
from rlrun.core.files import aligned, counted

if TYPE_CHECKING:
    from rlrun.commands.evaluate import EvaluationReport, ValidationReport

SEVERAL = ("checkpoint", "return", "±", "mean from", "to", "lowest", "highest", "length", "succeeded", "")
EPISODES = ("seed", "return", "length", "ended", "succeeded")
LEFT = ("ended", "succeeded", "side", "opponent", "")
ENDED = {"cut": "cut by evaluation.max_steps"}
Checkpoints = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="latest, best or a number of steps; several by commas or repeated; or all (default: latest).",
    ),
]


def eval(
    run: Annotated[Path, typer.Argument(help="A run directory, or an exported FILE.onnx.")],
    overrides: EnvOverrides = None,
    episodes: Annotated[int, typer.Option(help="Number of episodes.", min=1)] = 20,
    seed: FirstSeed = 0,
    checkpoint: Checkpoints = None,
    stochastic: Annotated[bool, typer.Option("--stochastic", help="Sample actions as in training.")] = False,
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="Probability of a sampled action (default: the run's evaluation.epsilon).",
            min=0.0,
            max=1.0,
            show_default=False,
        ),
    ] = None,
    table: Annotated[bool, typer.Option("--table", help="Also print a line for each episode.")] = False,
    video: Annotated[Path | None, typer.Option(help="Write a video of each episode into this folder.")] = None,
    videos: Annotated[int | None, typer.Option(help="Film only the first N episodes (default: all).", min=1)] = None,
    form: Annotated[str | None, typer.Option("--format", help="Format of videos: mp4 or gif (default: mp4).")] = None,
    opponent: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OPPONENT",
            help="In a game: random, perfect, a number of moves that it looks ahead, or a run; repeated for several "
            "(default: the run's evaluation.opponents).",
            show_default=False,
        ),
    ] = None,
    network: Network = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate a run's policy at one or several checkpoints, or an exported policy, or a network on held-out data."""
    names = [override for text in checkpoint or ["latest"] for override in text.split(",")]
    single = len(names) == 1 and names != [commands.evaluate.ALL]
    options: dict[str, Any] = {
        "episodes": episodes,
        "seed": seed,
        "stochastic": stochastic,
        "epsilon": epsilon,
        "video": video,
        "videos": videos,
        "form": form,
        "network": network,
        "opponents": opponent or None,
        "trust": trust,
        "overrides": overrides or [],
    }
    result = rlrun.evaluate(run, checkpoint=names[0] if single else names, **options)
    reports = [result] if single else result
    if as_json:
        objects = [report.to_json() for report in reports]
        print_json(objects[0] if single else objects)
    else:
        _print(reports, single=single, table=table)
    damaged = {report.checkpoint: report.damage for report in reports if getattr(report, "damage", None)}
    for damage in damaged.values():
        typer.echo(printable(damage), err=True)
    if damaged:
        verb = "is" if len(damaged) == 1 else "are"
        number = counted(len({report.checkpoint for report in reports}), "checkpoint")
        raise RunDirError(f"{run}: {len(damaged)} of {number} {verb} damaged")


def _print(reports: list[Any], *, single: bool, table: bool) -> None:
    different = {report.checkpoint: report for report in reports}.values()
    good = [report for report in different if getattr(report, "damage", None) is None]
    names = ("checkpoint", *good[0].metrics, "") if good and hasattr(good[0], "metrics") else SEVERAL
    lines = [report.describe() for report in good] if single else aligned([names, *map(_row, good)], left=LEFT)
    folders = [f"videos: {path.parent}" for report in good for path in getattr(report, "videos", ())]
    for line in (*lines, *dict.fromkeys(folders)):
        typer.echo(printable(line))
    if not table or names is not SEVERAL:
        return
    heads: tuple[str, ...] = EPISODES if single else ("checkpoint", *EPISODES)
    heads += tuple(name for name in ("side", "opponent") if good and getattr(good[0], f"{name}s"))
    rows = [row if single else (_step(report), *row) for report in good for row in _episodes(report)]
    typer.echo()
    for line in aligned([heads, *rows], left=LEFT):
        typer.echo(printable(line))


def _row(report: Any) -> tuple[str, ...]:
    if hasattr(report, "metrics"):
        return _step(report), *(f"{number:.4f}" for number in report.metrics.values()), _marks(report)
    low, high = report.interval or (None, None)
    numbers = (report.mean_return, report.std_return, low, high, min(report.returns), max(report.returns))
    outcomes = report.outcomes
    return (
        _step(report),
        *("-" if number is None else f"{number:.2f}" for number in numbers),
        f"{sum(report.lengths) / len(report.lengths):.1f}",
        f"{sum(outcomes)} of {len(outcomes)}" if outcomes else "-",
        _marks(report),
    )


def _marks(report: EvaluationReport | ValidationReport) -> str:
    return " ".join(name for name in ("latest", "best") if getattr(report, name))


def _episodes(report: EvaluationReport) -> list[tuple[str, ...]]:
    columns = (report.seeds, report.returns, report.lengths, report.endings, report.successes)
    games = [column for column in (report.sides, report.opponents) if column]
    overrides = {True: "yes", False: "no", None: "-"}
    return [
        (str(seed), f"{value:.2f}", str(length), ENDED.get(ending, ending), overrides[success], *game)
        for seed, value, length, ending, success, *game in zip(*columns, *games, strict=True)
    ]


def _step(report: EvaluationReport | ValidationReport) -> str:
    return f"{report.env_steps:_}"

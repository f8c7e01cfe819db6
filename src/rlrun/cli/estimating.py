"""List the jobs of `rlrun train`, and estimate their cost, before they start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlrun.cli.common import print_presets

if TYPE_CHECKING:
    from rlrun.config.expansion import Job

Estimate = Annotated[
    bool,
    typer.Option(
        "--estimate", help="Probe each kind of run for some seconds and print time and disk space; train nothing."
    ),
]
Probe = Annotated[
    float | None, typer.Option(min=0.0, help="Seconds of each probe of --estimate (default: 15).", show_default=False)
]
Price = Annotated[
    float | None,
    typer.Option(min=0.0, help="Price of an hour of this machine, for --estimate.", show_default=False),
]


@dataclass(frozen=True)
class EstimateRequest:
    """Settings of an estimate: seconds of a probe, and the price of an hour, or None."""

    probe: float | None
    price: float | None


def estimate_request(*, estimate: bool, probe: float | None, price: float | None) -> EstimateRequest | None:
    """Return the settings of an estimate, or None if none is requested.

    Raises:
        ConfigError: there are settings, but no estimate is requested.
    """
    from rlrun.core.errors import ConfigError

    if estimate:
        return EstimateRequest(probe, price)
    for name, value in {"probe": probe, "price": price}.items():
        if value is not None:
            raise ConfigError(f"--{name} goes with --estimate")
    return None


def print_estimate(
    jobs: Sequence[Job], request: EstimateRequest, *, folder: Path | None, config_dir: Path | None, workers: int | None
) -> None:
    """Print the cost of jobs."""
    from rlrun.analysis import estimate as estimates

    cost_estimate = estimates.estimate(
        jobs,
        folder=folder,
        config_dir=config_dir,
        workers=workers,
        seconds=estimates.PROBE if request.probe is None else request.probe,
        hourly_price=request.price,
        report=lambda line: typer.echo(line, err=True),
    )
    typer.echo(cost_estimate.describe())


def print_estimate_of_one(
    overrides: list[str], request: EstimateRequest, *, start: str | None, run_dir: Path | None, config_dir: Path | None
) -> None:
    """Print the cost of one run.

    Raises:
        ConfigError: an override is wrong, or it would start from another run.
    """
    from rlrun.config import compose
    from rlrun.config.expansion import Job, identity
    from rlrun.core.errors import ConfigError

    if start is not None:
        raise ConfigError("--estimate is for runs that begin from scratch, and --from starts from another")
    composed = compose(overrides, config_dir=config_dir)
    job = Job(identity(composed.config), tuple(composed.overrides), "")
    print_estimate([job], request, folder=run_dir, config_dir=config_dir, workers=1)


def list_jobs(jobs: Sequence[Job]) -> None:
    """Print jobs with the keys in which they differ."""
    from rlrun.config.overrides import parse
    from rlrun.runs.files import aligned, counted

    rows = [{override.key: override.text for override in parse(job.overrides)} for job in jobs]
    keys = [key for key in dict.fromkeys(key for row in rows for key in row) if len({row.get(key) for row in rows}) > 1]
    values = [[row.get(key, "").partition("=")[2] or row.get(key, "") for key in keys] for row in rows]
    heads = ("job", *keys)
    for line in aligned([heads, *([job.key, *cells] for job, cells in zip(jobs, values, strict=True))], left=heads):
        typer.echo(line)
    typer.echo(f"{counted(len(jobs), 'job')}; --estimate measures the time and disk that they take", err=True)
    print_presets(*(job.preset for job in jobs))

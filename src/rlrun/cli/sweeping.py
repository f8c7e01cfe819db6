"""Run and print sweeps for `rlrun train -m` and `rlrun resume SWEEP`; imported only for sweeps."""

from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import typer

from rlrun.cli.common import DIR, print_json, print_presets
from rlrun.commands.fork.parents import require_there, wanted
from rlrun.config.composition import folder_of
from rlrun.config.expansion import Job, composed_of, expand, gridded
from rlrun.config.overrides import parse
from rlrun.core.errors import ConfigError
from rlrun.core.files import aligned, counted
from rlrun.sweep import sweeping as sweeps
from rlrun.sweep.directory import require_apart
from rlrun.sweep.progress import rows as rows_of
from rlrun.sweep.scheduler import Limits
from rlrun.sweep.search import SearchPlan


def limits_of(*, fail_fast: bool, max_failures: int | None, retries: int, stall: float | None) -> Limits:
    """Return the limits at which a sweep stops."""
    return Limits(failures=1 if fail_fast else max_failures, retries=retries, stall=stall)


def sweep(overrides: list[str], config_dir: Path | None, *, dry_run: bool, as_json: bool, **options: Any) -> int:
    """Run a sweep, or only list its jobs; return the exit code.

    options: folder, workers, limits and trust of `rlrun.sweep.sweeping.sweep`.
    """
    overrides, own = sweeps.split_overrides(overrides)
    chosen = sweeps.SweepSettings(own, config_dir)
    settings = chosen.search()
    overrides, first = gridded(overrides, config_dir)
    plan = None if settings is None else SearchPlan(overrides, settings, config_dir)
    if plan is None:
        jobs = expand(overrides, config_dir)
        require_apart(jobs)
        _require_parents(jobs)
    else:
        jobs = []
        _require_parents(plan.check())
    if options["folder"] is None and first is not None:
        composed = [composed_of(job.composed) for job in jobs] if DIR in first.hydra else []
        folders = {folder_of(DIR, one) for one in composed or [first]}
        if len(folders) > 1:
            raise ConfigError(f"{DIR}={first.hydra[DIR]}: a sweep has one folder, and this differs between its jobs")
        options["folder"] = None if folders == {None} else Path(str(*folders))
    if not dry_run:
        outcome = sweeps.sweep(jobs, plan, settings=chosen, config_dir=config_dir, **options)
        return _exit_code(outcome, as_json=as_json)
    if plan is None:
        list_jobs(jobs, as_json=as_json)
    else:
        print_json({"search": plan.describe()}) if as_json else typer.echo(plan.describe())
        print_presets(plan.preset)
    return 0


def _require_parents(jobs: Iterable[Job]) -> None:
    """Refuse a sweep in which a job starts from a run that does not exist, before the first job begins."""
    runs = []
    for job in jobs:
        for key, source in wanted(composed_of(job.composed)).items():
            runs += [] if source is None else [(key, source[0])]
    require_there(runs)


def resume_sweep(
    folder: Path, overrides: list[str], config_dir: Path | None, *, trust: bool, as_json: bool, **options: Any
) -> int:
    """Resume a sweep; return the exit code.

    options: workers, limits and retry_failed of `rlrun.sweep.sweeping.resume`.
    """
    sweeps.require_trusted(folder, trust)
    overrides, own = sweeps.split_overrides(overrides)
    if overrides:
        raise ConfigError(
            f"'{overrides[0]}': a sweep is resumed with the overrides of its jobs; "
            f"values are added, and budgets raised, by rlrun train -m … --sweep-dir {folder}"
        )
    chosen = sweeps.SweepSettings(sweeps.with_saved_launcher(own, folder / "sweep.json"), config_dir)
    if chosen.search() is not None:
        raise ConfigError(
            "a search is resumed with its own settings; more trials: "
            f"rlrun train -m … sweep.trials=… --sweep-dir {folder}"
        )
    outcome = sweeps.resume(folder, settings=chosen, config_dir=config_dir, **options)
    return _exit_code(outcome, as_json=as_json)


def list_jobs(jobs: Sequence[Job], *, as_json: bool) -> None:
    """Print jobs with the overrides in which they differ."""
    rows = [
        {"job": job.key}
        | {override.key: override.text.partition("=")[2] or override.text for override in parse(job.overrides)}
        for job in jobs
    ]
    heads = [head for head in dict.fromkeys(chain(*rows)) if head == "job" or len({row.get(head) for row in rows}) > 1]
    if as_json:
        print_json({"jobs": [{"job": job.key, "overrides": job.overrides} for job in jobs]})
    else:
        typer.echo("\n".join(aligned([heads, *([row.get(head, "") for head in heads] for row in rows)], left=heads)))
    typer.echo(counted(len(jobs), "job"), err=True)
    print_presets(*(job.preset for job in jobs))


def _exit_code(outcome: sweeps.SweepOutcome, *, as_json: bool) -> int:
    """Print a sweep's jobs on standard error and its result on standard output; return the exit code."""
    statuses = outcome.sweep.statuses()
    for line in aligned(rows_of(outcome.sweep, statuses), left=("job", "overrides", "state", "why")):
        typer.echo(line, err=True)
    if as_json:
        print_json(outcome.to_json())
    else:
        typer.echo(outcome.describe())
    again = " --retry-failed" if outcome.code == 1 else ""
    if outcome.code:
        way_out = f"continue with: rlrun resume {outcome.sweep.path}{again}"
        typer.echo(f"logs/ has the messages of each job; {way_out}", err=True)
    return outcome.code

"""`rlrun train`."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from rlrun.cli.estimating import Estimate, Price, Probe, estimate_request, print_estimate_of_one
from rlrun.cli.overrides import ConfigDir, Overrides, Trust
from rlrun.cli.sweeping import (
    FailFast,
    Launcher,
    MaxFailures,
    Retries,
    Stall,
    Workers,
    limits_of,
    refuse_with_multirun,
    refuse_without_sweep,
    sweep,
    with_launcher,
)
from rlrun.cli.telling import show, tell_presets


def train(
    overrides: Overrides = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Where the run goes (default: runs/<algorithm>-<env>/…).", show_default=False)
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="RUN[@STEP|@best]",
            help="Start from another run: its overrides, then yours, and its parts as far as init.* says; "
            "a checkpoint's folder and FILE.safetensors will do, too.",
            show_default=False,
        ),
    ] = None,
    trust: Trust = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Build everything, print the data flow, step nothing; with -m list jobs.")
    ] = False,
    estimate: Estimate = False,
    probe: Probe = None,
    price: Price = None,
    config_dir: ConfigDir = None,
    multirun: Annotated[
        bool,
        typer.Option(
            "--multirun", "-m", help="A sweep: overrides take several values, seed=range(5) algorithm=sac,dqn."
        ),
    ] = False,
    sweep_dir: Annotated[
        Path | None, typer.Option(help="Where the sweep goes, or is added to (default: sweeps/…).", show_default=False)
    ] = None,
    launcher: Launcher = None,
    workers: Workers = None,
    fail_fast: FailFast = False,
    max_failures: MaxFailures = None,
    retries: Retries = 0,
    stall: Stall = None,
) -> None:
    """Train an agent: rlrun train algorithm=sac env=cartpole seed=3"""
    request = estimate_request(estimate=estimate, probe=probe, price=price)
    if multirun:
        refuse_with_multirun(run_dir=run_dir, start=start, trust=trust)
        limits = limits_of(fail_fast=fail_fast, max_failures=max_failures, retries=retries, stall=stall)
        where = {"folder": sweep_dir, "config_dir": config_dir}
        code = sweep(
            with_launcher(overrides or [], launcher),
            **where,
            workers=workers,
            limits=limits,
            dry_run=dry_run,
            estimate=request,
        )
        raise typer.Exit(code)
    options = {"fail_fast": fail_fast, "max_failures": max_failures, "retries": retries, "stall": stall}
    refuse_without_sweep(
        " of several runs: rlrun train -m …", sweep_dir=sweep_dir, workers=workers, launcher=launcher, **options
    )
    if request is not None:
        print_estimate_of_one(overrides or [], request, start=start, run_dir=run_dir, config_dir=config_dir)
        return
    _run_one(overrides or [], start=start, run_dir=run_dir, trust=trust or [], dry_run=dry_run, config_dir=config_dir)


def _run_one(
    overrides: list[str],
    *,
    start: str | None,
    run_dir: Path | None,
    trust: list[str],
    dry_run: bool,
    config_dir: Path | None,
) -> None:
    from rlrun.commands.fork.parents import started
    from rlrun.config import compose
    from rlrun.core.errors import ConfigError, Left

    if trust and start is None:
        raise ConfigError("--trust goes with --from; what you type yourself is trusted")
    with ExitStack() as stack:
        if start is not None:
            composed = stack.enter_context(started(overrides, start, config_dir, trust))
        else:
            composed = compose(overrides, config_dir=config_dir)
        # what is wrong with an override was told before torch is loaded
        from rlrun.commands import train as experiment
        from rlrun.loading.assembly import keep_freed_memory

        keep_freed_memory()

        show("rlrun.commands.fork", "rlrun.told")
        if dry_run:
            typer.echo(experiment.explain(composed))
            tell_presets(composed.preset)
            return
        try:
            result = experiment.train(composed, run_dir=run_dir)
        except Left as error:
            raise typer.Exit(75) from error
    typer.echo(result.describe())
    if result.summary["status"] == "stopped":
        raise typer.Exit(75)

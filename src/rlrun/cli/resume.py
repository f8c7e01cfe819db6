"""`rlrun resume`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from rlrun import commands
from rlrun.cli.common import (
    AsJson,
    FailFast,
    Launcher,
    MaxFailures,
    Retries,
    Stall,
    Trust,
    Workers,
    print_result,
    refuse,
    require_no_ranks,
    show,
)
from rlrun.core import processes
from rlrun.core.errors import Left


def resume(
    run: Annotated[Path, typer.Argument(help="The directory of a run or of a sweep.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[OVERRIDE]...",
            help="stop.env_steps=200_000 extends the budget; evaluation, checkpoint, logger, log, notes, "
            "memory.export, device, threads and env.vectorization can change, too.",
        ),
    ] = None,
    trust: Trust = False,
    config_dir: Annotated[
        Path | None,
        typer.Option("--config-dir", help="For a sweep: the conf folder that it started with."),
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="For a sweep: also run failed jobs again.")
    ] = False,
    launcher: Launcher = None,
    workers: Workers = None,
    fail_fast: FailFast = False,
    max_failures: MaxFailures = None,
    retries: Retries = 0,
    stall: Stall = None,
    as_json: AsJson = False,
) -> None:
    """Continue a stopped, killed or failed run from its newest good checkpoint, or a sweep."""
    options: dict[str, Any] = {"fail_fast": fail_fast, "max_failures": max_failures, "retries": retries, "stall": stall}
    if (run / "sweep.json").is_file():
        overrides = [*([f"launcher={launcher}"] if launcher else []), *(overrides or [])]
        require_no_ranks()
        from rlrun.cli.sweeping import limits_of, resume_sweep

        how: dict[str, Any] = {"retry_failed": retry_failed, "workers": workers, "limits": limits_of(**options)}
        raise typer.Exit(resume_sweep(run, overrides, config_dir, as_json=as_json, trust=trust, **how))
    of_sweeps = {"config_dir": config_dir, "retry_failed": retry_failed, "workers": workers, "launcher": launcher}
    refuse(f"a sweep, and {run} is not one", **of_sweeps, **options)
    resuming = commands.resume  # loads torch
    processes.tune_process()
    show("rlrun.output")
    try:
        result = resuming.resume(run, overrides or [], trust=trust)
    except Left as error:
        raise typer.Exit(75) from error
    print_result(result, as_json=as_json)

"""`rlrun train`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from rlrun import commands
from rlrun import config as configuration
from rlrun.cli.common import (
    AsJson,
    ConfigDir,
    ConfigName,
    Expect,
    FailFast,
    Info,
    Launcher,
    MaxFailures,
    Overrides,
    Package,
    Resolve,
    Retries,
    Stall,
    Trust,
    Workers,
    named,
    print_config,
    print_data_flow,
    print_files,
    print_result,
    refuse,
    refuse_folder,
    require_no_ranks,
    show,
)
from rlrun.core import distributed, processes
from rlrun.core.errors import ConfigError, Left

RunFolder = Annotated[Path | None, typer.Option(help="Directory of the run (default: runs/<algorithm>-<env>/…).")]
Continue = Annotated[
    bool, typer.Option("--continue", help="Resume the run of the same overrides in --run-dir, if there is one.")
]
Digest = Annotated[str | None, typer.Option(hidden=True, help="Of the config: another one is refused.")]
Start = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="RUN[@STEP|@best]",
        help="Fork another run: repeat its overrides, then yours, and take its parts, unless init.PART says otherwise.",
    ),
]
Cfg = Annotated[
    str | None, typer.Option("--cfg", "-c", metavar="job", help="Print the config, as `rlrun config`, and no run.")
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Build everything and print the data flow, without stepping; with -m list jobs."),
]
Multirun = Annotated[
    bool,
    typer.Option(
        "--multirun", "-m", help="Run a sweep: overrides take several values, such as seed=range(5) algorithm=sac,dqn."
    ),
]
SweepFolder = Annotated[Path | None, typer.Option(help="Directory of a new or existing sweep (default: sweeps/…).")]


def train(
    overrides: Overrides = None,
    run_dir: RunFolder = None,
    go_on: Continue = False,
    digest: Digest = None,
    start: Start = None,
    trust: Trust = False,
    dry_run: DryRun = False,
    expect: Expect = False,
    cfg: Cfg = None,
    package: Package = None,
    resolve: Resolve = False,
    info: Info = None,
    config_name: ConfigName = None,
    config_dir: ConfigDir = None,
    multirun: Multirun = False,
    sweep_dir: SweepFolder = None,
    launcher: Launcher = None,
    workers: Workers = None,
    fail_fast: FailFast = False,
    max_failures: MaxFailures = None,
    retries: Retries = 0,
    stall: Stall = None,
    as_json: AsJson = False,
) -> None:
    """Train an agent: rlrun train algorithm=sac env=cartpole seed=3"""
    options: dict[str, Any] = {"fail_fast": fail_fast, "max_failures": max_failures, "retries": retries, "stall": stall}
    overrides = named(config_name, overrides)
    if cfg not in (None, "job"):
        raise ConfigError(f"--cfg {cfg}: a run has no config of Hydra's own; --cfg job prints that of the run")
    if cfg is None and (package is not None or resolve):
        raise ConfigError("--package and --resolve go with --cfg job")
    refuse_folder(overrides, multirun=multirun)
    if multirun:
        single = {"run_dir": run_dir, "continue": go_on, "from": start, "expect": expect, "cfg": cfg, "info": info}
        refuse("a single run, and -m runs several; --sweep-dir names the folder of a sweep", **single)
        require_no_ranks()
        jobs = [*([f"launcher={launcher}"] if launcher else []), *overrides]
        if not dry_run and not any("launcher" in override.partition("=")[0] for override in jobs):
            from rlrun.sweep import children

            children.prepare()  # in parallel to this process's imports and composition
        from rlrun.cli.sweeping import limits_of, sweep

        where: dict[str, Any] = {"folder": sweep_dir, "workers": workers, "limits": limits_of(**options)}
        raise typer.Exit(sweep(jobs, config_dir, dry_run=dry_run, as_json=as_json, trust=trust, **where))
    of_sweeps: dict[str, Any] = {"sweep_dir": sweep_dir, "workers": workers, "launcher": launcher, **options}
    refuse("a sweep of several runs: rlrun train -m …", **of_sweeps)
    if go_on and run_dir is None:
        raise ConfigError("--continue goes with --run-dir, which names the run")
    if trust and start is None and not go_on:
        raise ConfigError("--trust goes with --from, --continue and --sweep-dir; what you type yourself is trusted")
    if start is None:
        composed = configuration.compose(overrides, config_dir)
    else:
        from rlrun.commands.fork.parents import started

        composed = started(overrides, start, config_dir, trust=trust)
    if info is not None:
        print_files(composed, info, as_json=as_json)
        return
    if cfg is not None:
        print_config(composed, resolve=resolve, package=package, as_json=as_json)
        return
    bounds = commands.expect.promises(composed.config) if expect else {}
    experiment = commands.train  # loads torch, so errors in overrides are reported before
    processes.tune_process()
    show("rlrun.commands.fork", "rlrun.output")
    if dry_run:
        print_data_flow(composed, as_json=as_json)
        return
    try:
        if go_on and run_dir is not None:
            result = commands.resume.proceed(composed, run_dir, digest, trust)
        else:
            result = experiment.train(composed, run_dir=run_dir)
    except Left as error:
        if (message := str(error)) and distributed.rank() == 0:
            typer.echo(f"rlrun: {message}", err=True)
        raise typer.Exit(75) from error
    print_result(result, bounds, as_json=as_json)

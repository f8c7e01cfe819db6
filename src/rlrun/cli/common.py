"""Options that several commands share, their completion, and output, with `--json` as one JSON value."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlrun import commands
from rlrun import config as configuration
from rlrun.cli.completion import complete
from rlrun.core import distributed
from rlrun.core.errors import ConfigError, printable
from rlrun.core.files import finite

if TYPE_CHECKING:
    from rlrun.commands.train import Result
    from rlrun.config import Composed

DIR, SUBDIR = "hydra.sweep.dir", "hydra.sweep.subdir"
_values: list[Any] = []  # to print when the command ends

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[OVERRIDE]...",
        help="algorithm=sac env=pendulum seed=3 algorithm.discount=0.98 env.id=Acrobot-v1 …",
        autocompletion=complete,
    ),
]
EnvOverrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[OVERRIDE]...",
        help="For an exported policy, or a run that learned from data alone: env=NAME, env.id=ID or env.target=CLASS "
        "names another environment; env.kwargs.KEY=VALUE and env.reset_options.KEY=VALUE change the own one "
        "of a policy or a run.",
        autocompletion=complete,
    ),
]
ConfigDir = Annotated[
    Path | None,
    typer.Option("--config-dir", "-cd", help="Your own conf folder, searched first (default: ./conf)."),
]
ConfigName = Annotated[
    str | None,
    typer.Option("--config-name", "-cn", metavar="NAME", help="Start from NAME.yaml of your conf (default: train)."),
]
Package = Annotated[str | None, typer.Option("--package", "-p", help="Only this part of the config, as algorithm.")]
Resolve = Annotated[bool, typer.Option("--resolve", help="Replace interpolations by their values.")]
Info = Annotated[
    str | None,
    typer.Option("--info", metavar="defaults-tree", help="Print the files that make the config, in order of merging."),
]
FirstSeed = Annotated[
    int,
    typer.Option("--seed", help="Episode i starts with reset(seed=seed + i).", min=0, max=2**62),
]
Network = Annotated[
    str | None,
    typer.Option(
        help="Network of a run without an agent, such as networks.classifier (default: that which is validated).",
        show_default=False,
    ),
]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Build what was not made here, and remember it: you have read its config.yaml."),
]


Workers = Annotated[int | None, typer.Option(min=1, help="Jobs at a time (default: the launcher's capacity).")]
Launcher = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Short for launcher=NAME: local, slurm, ray, or a file of your conf/launcher/.",
    ),
]
FailFast = Annotated[
    bool, typer.Option("--fail-fast", help="Stop the sweep when a job fails; the others can be resumed.")
]
MaxFailures = Annotated[int | None, typer.Option(min=1, help="Stop the sweep after this number of failed jobs.")]
Retries = Annotated[int, typer.Option(min=0, help="Further attempts of a failed job.")]
Stall = Annotated[
    float | None,
    typer.Option(min=1.0, help="Seconds without progress after which a job counts as hung."),
]


@contextmanager
def _only_json() -> Iterator[None]:
    """Redirect all output of a run's code to standard error, also in child processes; print the value at the end."""
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
        while _values:
            typer.echo(json.dumps(finite(_values.pop()), allow_nan=False, default=str))


def _begin(context: typer.Context, as_json: bool) -> bool:
    if as_json:
        context.with_resource(_only_json())
    return as_json


AsJson = Annotated[
    bool,
    typer.Option(
        "--json", help="Print one JSON value; `rlrun schema --outputs` prints its JSON schema.", callback=_begin
    ),
]


def print_json(value: Any) -> None:
    """Print the result of a command as JSON; NaN and infinity become null, and paths become strings."""
    _values.append(value)


class _Printable(logging.Formatter):
    """Formats messages without control characters, as texts and paths of a run may come from another person."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(printable, super().format(record).split("\n")))


def show(*names: str) -> None:
    """Print the messages of some loggers on standard error, without a prefix."""
    for name in names:
        messages, handler = logging.getLogger(name), logging.StreamHandler(sys.stderr)
        handler.setFormatter(_Printable("%(message)s"))
        messages.handlers, messages.propagate = [handler], False
        messages.setLevel(logging.INFO)


def refuse(why: str, **options: Any) -> None:
    """Refuse options that are set but do not apply.

    why: the commands or modes to which they apply.

    Raises:
        ConfigError: naming the option.
    """
    for name, value in options.items():
        if value:
            raise ConfigError(f"--{name.replace('_', '-')} is for {why}")


def require_no_ranks() -> None:
    """Refuse a sweep under torchrun, which starts the ranks of a single run, with a ConfigError."""
    if distributed.world_size() > 1:
        raise ConfigError("torchrun starts one run; a sweep has jobs of several processes by launcher.ranks=2")


def refuse_folder(overrides: Sequence[str], *, multirun: bool) -> None:
    """Refuse a sweep's folder override for a single run, and the reverse, with a ConfigError."""
    for key in (text.strip().lstrip("+").partition("=")[0] for text in overrides):
        if multirun and key == "hydra.run.dir":
            raise ConfigError(f"{key} is for a single run: -m runs several; {DIR} names their folder")
        if not multirun and key in (DIR, SUBDIR):
            raise ConfigError(f"{key} is for a sweep: rlrun train -m")


def named(config_name: str | None, overrides: list[str] | None) -> list[str]:
    """Return overrides, preceded by one for the primary config file if `config_name` is set."""
    return [*([] if config_name is None else [f"hydra.job.config_name={config_name}"]), *(overrides or [])]


def print_config(composed: Composed, *, resolve: bool, package: str | None, as_json: bool) -> None:
    """Print a config, or a part of it."""
    if as_json:
        print_json(configuration.select(composed.config, resolve=resolve, package=package))
    else:
        typer.echo(configuration.to_yaml(composed.config, resolve=resolve, package=package), nl=False)


def print_files(composed: Composed, info: str, *, as_json: bool) -> None:
    """Print the files whose keys were merged, in order; then the overrides, if they set keys.

    Raises:
        ConfigError: `info` is neither `defaults` nor `defaults-tree`.
    """
    if info not in ("defaults", "defaults-tree"):
        raise ConfigError(f"--info {info}: there are defaults and defaults-tree, the files in the order of merging")
    labels = [layer.label for layer in composed.layers if layer.config_path or layer.content]
    print_json(labels) if as_json else typer.echo("\n".join(labels))


def print_presets(*presets: str | None) -> None:
    """Print the applied presets, if any, on standard error."""
    if line := configuration.describe_presets(presets):
        typer.echo(line, err=True)


Expect = Annotated[
    bool,
    typer.Option("--expect", help="Then check what `expect` in the config promises; exit code 1 if it is broken."),
]


def print_data_flow(composed: Composed, *, update: bool = False, as_json: bool) -> None:
    """Print the data flow of one update, or with `update` its code."""
    answer = commands.train.explain(composed, form="code" if update else "data" if as_json else "text")
    if as_json:
        print_json({"code": answer} if update else answer)
    else:
        typer.echo(answer)
    print_presets(composed.preset)


def print_networks(composed: Composed, *, as_json: bool) -> None:
    """Print the layers of each network under its config path."""
    answer = commands.train.explain(composed, form="networks")
    if as_json:
        print_json({"networks": answer})
    else:
        typer.echo("\n".join(f"{path}: {layers}" for path, layers in answer.items()))
    print_presets(composed.preset)


def print_result(result: Result, bounds: Mapping[str, Mapping[str, float]] | None = None, *, as_json: bool) -> None:
    """Print the result of a run, and whether it keeps its promises.

    The exit code is 75 if the run was stopped and can be resumed, and 1 if a promise is broken.
    """
    from rlrun.runs.directory import RunDir

    summary = result.summary
    values = commands.ls.about(RunDir(result.run_dir)).to_json() if as_json else {}
    if as_json:
        print_json(values)
    else:
        typer.echo(result.describe())
    if result.trainer is None:
        typer.echo(commands.resume.describe_finished(summary, result.config), err=True)
    if summary["status"] == "stopped":
        raise typer.Exit(75)
    if bounds:
        promises = commands.expect.check(result.run_dir, bounds, result.config)
        values["promises"] = [{"kept": kept, "text": line} for kept, line in promises]
        for _, line in promises if not as_json else ():
            typer.echo(line)
        if not all(kept for kept, _ in promises):
            raise typer.Exit(1)

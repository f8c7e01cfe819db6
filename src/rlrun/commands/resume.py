"""Resume a run that ended early, or extend a finished one; the Python equivalent of `rlrun resume`.

A resumed run gives the same results as an uninterrupted run with the same budget. There are exceptions: environments
whose state cannot be restored, schedules that read a changed budget, and other software. In these cases the manifest
and the log call the run `approximate` and give the reason.
"""

import logging
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rlrun.checkpointing import load
from rlrun.commands.train import Experiment, Result, begin
from rlrun.config import Composed, kept
from rlrun.config.expansion import changeable, identity
from rlrun.config.interpolation import dotted, fix_time, leaves, mentions, plain, split
from rlrun.config.overrides import Override, apply, listed, parse
from rlrun.config.schema import CHANGEABLE, check_kinds
from rlrun.core import distributed
from rlrun.core.errors import ConfigError, InProgress, Left, RlrunError, RunDirError
from rlrun.core.files import read_json, reason, write_json
from rlrun.loading.assembly import process_restored
from rlrun.loading.policy import Arrival, arrived, check_saved
from rlrun.runs.directory import RunDir, checkpoint_key, is_run, rank_folder
from rlrun.runs.heartbeat import hold_run, lock_run, require_idle, trace_of
from rlrun.runs.progress import counted_updates, position
from rlrun.runs.trust import require_trusted

NUMERIC = ("torch", "numpy", "gymnasium", "rlrun")  # packages whose version may affect results
OF_MACHINE = (  # facts in the manifest about each process that resumes a run
    *("command", "created", "git", "python", "packages", "platform", "host", "cpu"),
    *("device", "gpu", "threads", "code"),
)
LIMITS = (("stop", "env_steps"), ("stop", "updates"))
PROGRESS = ("progress",)  # the share of these limits that is done
OF_BUDGET = (("stop",), PROGRESS, ("callbacks", "budget"), ("callbacks", "logger"))  # read the budget without effect
WATCHERS = (*OF_BUDGET, ("callbacks", "evaluation"))  # use the evaluator without effect on training
IN_PROCESS = ("auto", "sync", "async")  # kinds of vectorization with the same random numbers

_messages = logging.getLogger("rlrun")


@distributed.joined()
@process_restored()
def resume(
    run: os.PathLike[str] | str,
    overrides: Iterable[str] = (),
    *,
    trust: bool = False,
) -> Result:
    """Resume a run from its newest intact checkpoint; without any, restart it in the same folder.

    Args:
        run: a run directory. A finished run only accepts new `notes`, unless an override raises its budget.
        overrides: of keys that may change: `["stop.env_steps=200_000"]`; they are saved in the run.
        trust: build the run even if it was made elsewhere, and remember that it is trusted.

    Raises:
        RequestError: no such run; a process is working on it; a key may not change; every checkpoint is damaged; or
            it is not trusted.
        RlrunError: the run failed; `status.json` says so.
    """
    overrides, trace, run = listed(overrides), trace_of(RunDir.open(run)), Path(run)
    distributed.by_first(lambda: require_trusted(run, trust))
    with arrived(run) as arrival:
        return _resume(arrival, overrides, run, trace)


def proceed(composed: Composed, run_dir: Path, digest: str | None = None, trust: bool = False) -> Result:
    """Train in a folder, or resume its run if that has the same overrides: `rlrun train --continue`.

    Args:
        composed: the config of a new run.
        run_dir: its folder. To an existing run, only overrides of keys that may change are applied.
        digest: the required `identity` of a new run's config, for a job of a sweep.
        trust: resume the run even if it was made elsewhere, and remember that it is trusted.

    Raises:
        Left: another process is working on the run.
        RequestError: the folder contains something else, or files cannot be locked there.
    """
    directory, asked = RunDir(run_dir), composed.overrides

    def prepare() -> list[str] | None:
        """Lock the folder; return the new overrides for the run in it, or None if it has no run."""
        if directory.path.is_dir() and not is_run(directory.path):
            directory.require_begun()
        directory.path.mkdir(parents=True, exist_ok=True)
        _, locked = stack.enter_context(hold_run(directory))
        if not locked:
            raise RunDirError(f"{directory.lock} cannot be locked: --continue needs a folder with locks")
        if not is_run(directory.path):
            if digest not in (None, identity(composed.config)):
                raise ConfigError(
                    "these overrides make another config than when the sweep began: conf/ has changed; undo that, "
                    "or begin another sweep"
                )
            return None
        recorded = directory.read_overrides()
        if {*asked} - {*changeable(asked)} != {*recorded} - {*changeable(recorded)}:
            raise RunDirError(f"run directory {directory.path} holds a run of other overrides; name another folder")
        return [override for override in changeable(asked) if override not in recorded]

    try:
        with ExitStack() as stack:
            news = distributed.by_first(prepare, InProgress)
            if news is None:
                return begin(composed, directory.path, restart=True)
            return resume(directory.path, news, trust=trust)
    except InProgress as error:
        raise Left(str(error)) from error
    except OSError as error:
        raise RunDirError(f"run directory {directory.path} cannot be made: {reason(error)}") from error


def _resume(arrival: Arrival, overrides: list[str], run: Path | str, trace: object) -> Result:
    directory, ranks = arrival.directory, arrival.about.get("ranks", 1)
    if ranks != (now := distributed.world_size()):
        way_out = "rlrun resume" if ranks == 1 else f"torchrun --nproc-per-node {ranks} -m rlrun resume"
        raise ConfigError(f"{run} was begun with {ranks} processes, not {now}; continue it by {way_out} {run}")
    distributed.by_first(lambda: require_idle(directory))
    before, changes = directory.read_overrides(), parse(overrides)
    config = changed(arrival.config, changes, run)
    if distributed.by_first(lambda: finished(directory, config, changes)):
        notes = [override for override in changes if split(override.key)[0] == "notes"]
        config = changed(arrival.config, notes, run)
        if notes and not distributed.rank():
            with hold_run(directory):
                directory.keep(kept(config), _joined(before, notes))
        return Result(directory.path, read_summary(directory), config, None)
    loaded = _loaded(directory)
    if loaded is not None:
        _require_ahead(config, changes, *loaded[:2])
    composed = Composed(config, _joined(before, changes), {}, [], Path.cwd())
    experiment = Experiment(composed)
    if loaded is not None:
        experiment.restore(loaded[1], loaded[0])
    if distributed.rank():
        return experiment.follow()
    asking = (step for steps in experiment.trainer.plan.steps.values() for step in steps if "progress" in step.asks)
    hooks = dict.fromkeys(step.callback.name for step in asking)
    readers = [*readers_of_budget(arrival.config, config, hooks), *readers_of_evaluations(arrival.config, config)]
    since = {
        "overrides": [override.text for override in changes],
        "checkpoint": None if loaded is None else loaded[0].name,
    }
    with ExitStack() as stack:
        try:
            stack.enter_context(lock_run(directory, trace))
            for message in loaded[2] if loaded is not None else ():
                directory.note(message)
            _record(directory, experiment, arrival.about, since)
        except RlrunError as error:  # before training begins
            raise RunDirError(str(error)) from error
        summary = experiment.train(directory, partial(_confirm, directory, readers))
    return Result(directory.path, summary, config, experiment.trainer)


def _joined(before: Sequence[str], changes: Iterable[Override]) -> list[str]:
    """Return the overrides of a run, updated by those of a resume."""
    return [override.text for override in parse([*before, *(change.text for change in changes)])]


def changed(config: DictConfig, overrides: Sequence[Override], run: Path | str = "RUN") -> DictConfig:
    """Return a run's config with the overrides of a resume applied.

    Raises:
        ConfigError: an override is wrong, or its key may not change.
    """
    before, config = config, config.copy()
    OmegaConf.set_struct(config, True)
    for override in overrides:
        if not any(f"{override.key}.".startswith(f"{key}.") for key in CHANGEABLE):
            request = shlex.join(["rlrun", "train", "--from", str(run), override.text])
            raise ConfigError(
                f"{override.key} cannot change when a run is resumed, only {_list(CHANGEABLE)} can; "
                f"a new run takes it: {request}"
            )
        if override.sign:
            raise ConfigError(f"'{override.text}': a resumed run takes KEY=VALUE; no key is added or deleted")
        apply(config, override, [])
    fix_time(config)
    for key, value in check_kinds(config).items():
        OmegaConf.update(config, key, value, merge=False)
    check_saved(config, Path(run) / "config.yaml")
    kinds = [OmegaConf.select(version, "env.vectorization") for version in (before, config)]
    if kinds[0] != kinds[1] and not set(kinds) <= set(IN_PROCESS):
        raise ConfigError(
            f"env.vectorization cannot change from {kinds[0]} to {kinds[1]} when a run is resumed, "
            f"only between {_list(IN_PROCESS)}: others draw other random numbers"
        )
    axes = [OmegaConf.select(version, "log.axis") or "env_steps" for version in (before, config)]
    if axes[0] != axes[1]:
        raise ConfigError(
            f"log.axis cannot change from {axes[0]} to {axes[1]} when a run is resumed: its records are there"
        )
    return config


def finished(run: RunDir, config: DictConfig, overrides: Sequence[Override] = ()) -> bool:
    """Return True if a run is complete, also under the budget in new overrides."""
    if run.read_status()["status"] != "completed":
        return False
    summary = read_summary(run)
    if summary["stopped_by"] is None or not any(override.key.split(".")[0] == "stop" for override in overrides):
        return True  # the loader has no more batches
    return bool(reached(summary, config))


def reached(summary: dict[str, Any], config: DictConfig) -> list[str]:
    """Return the keys of `stop` whose limits a run has reached, by its summary."""
    values = {name: summary[name] for name in ("env_steps", "updates", "seconds")}
    values["updates"] = counted_updates(summary)
    values["mean_return"] = (summary["evaluation"] or {}).get("mean_return")
    limits: Any = OmegaConf.to_container(config.stop, resolve=True)
    pairs = [(f"stop.{name}", values.get(name), limit) for name, limit in limits.items()]
    return [key for key, value, limit in pairs if value is not None and limit is not None and value >= limit]


def describe_finished(summary: dict[str, Any], config: DictConfig) -> str:
    """Return a message with the length of a finished run, and the overrides that extend it."""
    limits = [f"{limit}=…" for limit in reached(summary, config)]
    way_out = f"; {' and '.join(limits)} beyond that extends it" if limits else ""
    unit = "steps" if summary["env_steps"] else "updates"
    return f"the run is finished at {position(summary):,} {unit}{way_out}"


def read_summary(run: RunDir) -> dict[str, Any]:
    """Return the summary of a run.

    Raises:
        RunDirError: the file is missing or damaged.
    """
    summary = read_json(run.summary)
    try:
        figures = [summary[name] for name in ("env_steps", "updates", "seconds")]
        if summary["evaluation"] is not None:
            figures += [summary["evaluation"][name] for name in ("mean_return", "std_return", "episodes")]
        if all(isinstance(figure, int | float) for figure in figures) and {"status", "stopped_by"} <= {*summary}:
            result: dict[str, Any] = summary
            return result
    except (KeyError, TypeError):
        pass
    raise RunDirError(f"{run.summary} is damaged: it lacks what every run records")


def _loaded(run: RunDir) -> tuple[Path, dict[str, Any], list[str]] | None:
    """Return the result of `newest` in the first rank; in another rank, its own checkpoint of the same name."""
    found = newest(run) if distributed.rank() == 0 else None
    name = distributed.broadcast(None if found is None else found[0].name)
    if distributed.rank() == 0 or name is None:
        return found
    where = rank_folder(run.checkpoints, distributed.rank()) / name
    return where, load(where), []


def newest(run: RunDir) -> tuple[Path, dict[str, Any], list[str]] | None:
    """Return the newest intact checkpoint, its states, and the faults of newer ones; None if the run never saved one.

    A checkpoint is intact if it is so in all ranks.

    Raises:
        RunDirError: all are damaged or deleted.
    """
    folders = run.newest_first()
    damaged = []
    for where in folders:
        try:
            states = load(where)
            for rank in range(1, distributed.world_size()):
                load(rank_folder(run.checkpoints, rank) / where.name)
        except RunDirError as error:
            damaged.append(str(error))
            continue
        messages = [f"{message}; resuming from checkpoint {where.name}" for message in damaged]
        for message in messages:
            _messages.warning("%s", message)
        return where, states, messages
    if folders:
        raise RunDirError(f"none of the {len(folders)} checkpoints can be read; of the newest: {damaged[0]}")
    if run.read_status()["status"] == "completed" or (run.checkpoints / "latest").is_file():
        raise RunDirError(f"{run.path} has no checkpoint left to resume from")
    return None


def _require_ahead(config: DictConfig, overrides: Sequence[Override], where: Path, states: Mapping[str, Any]) -> None:
    """Refuse a budget that the checkpoint has already reached.

    Raises:
        ConfigError: naming the budget and the count.
    """
    reached = dict(zip(("stop.env_steps", "stop.updates"), checkpoint_key(where), strict=True))
    trainer = states.get("trainer")
    if isinstance(trainer, dict):
        reached["stop.updates"] = counted_updates({"updates": reached["stop.updates"]} | trainer)
    for key, at in reached.items():
        limit: Any = OmegaConf.select(config, key)
        is_set = any(override.key in (key, "stop") for override in overrides)
        if is_set and limit is not None and at >= limit:
            unit = "environment steps" if key == "stop.env_steps" else "updates"
            raise ConfigError(f"{key}={limit}: the run is already at {at:,} {unit}; give a total beyond that")


def _record(run: RunDir, experiment: Experiment, about: dict[str, Any], origin: dict[str, Any]) -> None:
    """Record a resume in the run's files: process, checkpoint and machine."""
    now = experiment.describe()
    entry = {name: now[name] for name in OF_MACHINE if name in now} | origin
    about = {**about, "resumed": [*about.get("resumed", []), entry]}
    if origin["checkpoint"] is None:
        run.echo("resume: started again; there was no checkpoint")
    run.start(config=kept(experiment.config), overrides=experiment.composed.overrides, manifest=about)
    experiment.code.save(run.path, len(about["resumed"]))


def _confirm(run: RunDir, readers: list[str], lost: list[str]) -> None:
    """Record whether a run continues exactly; an approximate run stays approximate."""
    about = read_json(run.manifest)
    first, now = [about, *about["resumed"]][-2:]
    now["approximate"] = [*readers, *lost, *differences(first, now)]
    approximate = about.get("resume") == "approximate" or bool(now["approximate"])
    about["resume"] = "approximate" if approximate else "exact"
    for why in now["approximate"]:
        _messages.warning("the run does not continue exactly: %s", why)  # also goes to the log
    run.echo(f"resume: {about['resume']}: from checkpoint {now['checkpoint']}")
    write_json(run.manifest, about)


def readers_of_budget(before: DictConfig, config: DictConfig, hooks: Iterable[str] = ()) -> list[str]:
    """Return the keys that read a changed limit of `stop`, so that a longer run would have differed from the start.

    An example is a learning rate that decays to 0 over the budget.

    hooks: callbacks that request `progress`, the share of the budget that is done.
    """
    reads: list[tuple[str, tuple[str, ...]]] = [(f"callbacks.{name}", PROGRESS) for name in hooks]
    for path, value in leaves(plain(config)):
        if not any(path[: len(place)] == place for place in OF_BUDGET):
            reads += [(dotted(path), key) for key in mentions(str(value), path) if key[0] in ("stop", PROGRESS[0])]
    pairs = [(reader, dotted(key)) for reader, at in reads for key in (LIMITS if at[:1] == PROGRESS else [at])]
    changes = [(*pair, *(OmegaConf.select(version, pair[1]) for version in (before, config))) for pair in pairs]
    return [f"{reader} reads {key}, and {old} became {new}" for reader, key, old, new in changes if old != new]


def readers_of_evaluations(before: DictConfig, config: DictConfig) -> list[str]:
    """Return the parts that learn from evaluations, if settings of evaluations have changed."""
    settings: list[Any] = [OmegaConf.to_container(version.evaluation) for version in (before, config)]
    old, new = (dict(leaves(version)) for version in settings)
    changed = [dotted(key) for key in {**old, **new} if old.get(key) != new.get(key) and key[0] != "video"]
    readers = [
        dotted(path)
        for path, value in leaves(plain(config))
        if not any(path[: len(place)] == place for place in WATCHERS)
        and any(key[:2] == ("callbacks", "evaluation") for key in mentions(str(value), path))
    ]
    return [f"{reader} learns from evaluations, and evaluation.{key} changed" for reader in readers for key in changed]


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the facts that affect results and differ between two processes of a run."""
    changes = [
        f"{name} {before.get('packages', {}).get(name)} became {now['packages'].get(name)}"
        for name in NUMERIC
        if before.get("packages", {}).get(name) != now["packages"].get(name)
    ]
    for name in ("device", "threads"):
        if before.get(name) != now[name]:
            changes.append(f"{name} {before.get(name)} became {now[name]}")
    for name, pattern in (("cpu", r"(.*?)(?:, \d+ cores)?"), ("python", r"(\d+\.\d+).*")):  # ignores cores, patches
        old, new = (re.sub(f"^{pattern}$", r"\1", str(about.get(name))) for about in (before, now))
        if old != new:
            changes.append(f"{name} {old} became {new}")
    return [*changes, *_differences_of_code(before, now)]


def _differences_of_code(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return which of the user's code files differ, among those that both processes recorded."""
    files, files_now = before.get("code"), now.get("code")
    if not isinstance(files, dict) or not isinstance(files_now, dict):
        return []
    changed = [name for name in files if files[name] != files_now.get(name, files[name])]
    return [f"your code differs ({', '.join(changed)})"] if changed else []


def _list(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"

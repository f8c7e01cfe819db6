"""Check the promises of a run on one command: seeds, checkpoints, exact resume, truncation, export.

The runs are small, so that every algorithm is quick.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from omegaconf import OmegaConf

from rlrun import checkpointing as storage
from rlrun.commands import checkpoints as inspection
from rlrun.commands.resume import resume
from rlrun.commands.train import Result, train
from rlrun.config import Composed, compose
from rlrun.config.build import explain
from rlrun.config.overrides import parse
from rlrun.core.clock import is_clock
from rlrun.core.errors import MissingExtra, RequestError, SpaceError
from rlrun.export.making import export_onnx
from rlrun.runs.directory import RunDir, checkpoint_key
from rlrun.security import projects
from rlrun.security.plugins import FOREIGN
from rlrun.security.trust import typed_names

WITH_FILE = {  # overrides of a command that tests a file of a group
    "algorithm": ["env=cartpole"],
    "env": ["algorithm=sac"],
    "memory": ["algorithm=sac", "env=cartpole"],
    "optimizer": ["algorithm=sac", "env=pendulum"],
    "with": ["algorithm=sac", "env=pendulum"],
    "preset": [],
}
SMALL = {  # of some updates
    "algorithm.hidden": "[8,8]",
    "algorithm.batch_size": 4,
    "algorithm.warmup_steps": 16,
    "algorithm.horizon": 6,
    "algorithm.unroll": 6,
    "algorithm.burn_in": 1,
    "offline.updates": 2,
    "data.dataset.rows": 400,
    "evaluation.every": 1_000_000,  # only once, at the end
    "evaluation.episodes": 1,
    "evaluation.max_steps": 5,
    "stop.updates": 3,
    "logger": "[]",
}
AT = 18  # environment steps at the checkpoint to resume from
RESUMED = {  # of a run that is resumed there
    **SMALL,
    "algorithm.warmup_steps": 12,
    "memory.length": 100,
    "algorithm.horizon": 6,  # so that a rollout of three envs ends with the checkpoint
    "algorithm.epochs": 2,
    "offline.updates": 4,
    "stop.env_steps": None,
    "stop.updates": 24,
    "callbacks.learning_rate.value.steps": 1_000,
    "checkpoint.every": AT,
    "checkpoint.keep_last": None,
    "log.every": 5,
}
ENVS = 3
OF_TRUNCATION = {**SMALL, "stop.updates": 6, "stop.env_steps": None, "num_envs": 2, "evaluation.every": 0}
ONE, OTHER = 0.5, -0.5  # last observations
Outcome = Literal["ok", "failed", "skipped"]
Learned = dict[str, bytes]  # every parameter after training


@dataclass(frozen=True)
class Verdict:
    """The result of one check.

    Attributes:
        check: its name.
        outcome: `skipped` where it cannot be checked, or does not apply.
        text: why.
    """

    check: str
    outcome: Outcome
    text: str = ""


@dataclass(frozen=True)
class Examined:
    """All checks of one command."""

    overrides: list[str]
    verdicts: list[Verdict]

    @property
    def passed(self) -> bool:
        return all(verdict.outcome != "failed" for verdict in self.verdicts)


@dataclass(frozen=True)
class ConformanceReport:
    """The results of all commands for a plugin."""

    plugin: str
    examined: list[Examined]

    @property
    def passed(self) -> bool:
        return all(trial.passed for trial in self.examined)

    def to_json(self) -> dict[str, Any]:
        """Return the object that `rlrun plugin test --json` prints."""
        return {"plugin": self.plugin, "passed": self.passed, "examined": [asdict(trial) for trial in self.examined]}


@dataclass(frozen=True)
class FinishedRun:
    """A run that ended, with what parts that are not rlrun's hold at the end."""

    run: Path
    updates: int
    values: dict[str, str]

    @classmethod
    def of(cls, result: Result) -> FinishedRun:
        """Read a run's parts at once, before another run changes state that the process shares."""
        return cls(result.run_dir, result.summary["updates"], held_by_parts(result.trainer))


def examine(
    overrides: Sequence[str],
    folder: Path,
    *,
    config_dir: Path | None = None,
    own: Sequence[str] = (),
    of_environment: bool = False,
) -> Examined:
    """Run all checks on one command.

    Args:
        overrides: of `rlrun train`.
        folder: for its runs, some megabytes.
        config_dir: the user's own conf folder.
        own: the overrides that the user typed; their numbers are not made small.
        of_environment: the plugin's file is an environment, not an algorithm.
    """
    settings = {override.key: override.value for override in parse(own)}
    numbers = {key: value for key, value in {"num_envs": ENVS, **RESUMED}.items() if key not in settings}

    def small(seed: int) -> Composed:
        composed = shrink(compose(list(overrides), config_dir), numbers)
        composed.config.seed = int(composed.config.seed) + seed
        return composed

    def tried(name: str, check: Callable[[], list[Verdict]]) -> list[Verdict]:
        try:
            return check()
        except Exception as error:
            return [Verdict(name, "failed", explain(error))]

    try:
        baseline = FinishedRun.of(train(small(0), run_dir=folder / "one"))
    except Exception as error:
        return Examined([*overrides], [Verdict("training", "failed", explain(error))])
    verdicts = [Verdict("training", "ok", f"{baseline.updates} updates")]
    verdicts += tried("seeding", lambda: [seeding(baseline, small, folder)])
    names = typed_names(settings)  # some may be other texts, such as names of files
    trust = [name for name in names if name.startswith("oc.") or projects.find(name.split(".")[0], [Path.cwd()])]
    verdicts += tried("exact resume", lambda: resumed(baseline, folder / "resumed", trust=trust))
    if not of_environment:
        verdicts += tried("truncation", lambda: [truncation(overrides, folder / "endings", config_dir, settings)])
    verdicts += tried("export", lambda: [export(baseline.run)])
    return Examined([*overrides], verdicts)


def seeding(baseline: FinishedRun, small: Callable[[int], Composed], folder: Path) -> Verdict:
    """Train again with the same seed, and with another one."""
    same = FinishedRun.of(train(small(0), run_dir=folder / "same"))
    mismatches = [*_parts_apart(baseline.run, same.run), *differences(baseline.values, same.values)]
    if mismatches or records(baseline.run) != records(same.run):
        text = f"the same seed gives another run: {_several(mismatches) or 'its metrics differ'}"
        return Verdict("seeding", "failed", text)
    if not _parts_apart(baseline.run, train(small(1), run_dir=folder / "other").run_dir):
        return Verdict("seeding", "failed", "another seed gives the same run")
    return Verdict("seeding", "ok", "the same seed gives the same run, another one another")


def resumed(baseline: FinishedRun, copy: Path, *, trust: Sequence[str]) -> list[Verdict]:
    """Resume from an early checkpoint, as after a kill, and compare with the uninterrupted run."""
    copy_as_killed(baseline.run, copy, at=AT)
    repeated = FinishedRun.of(resume(copy, trust=trust))
    about = json.loads((copy / "manifest.json").read_text())
    parts = _parts_apart(baseline.run, repeated.run)
    exact = Verdict("exact resume", "ok", "the resumed run is the one that never stopped")
    if parts or records(copy) != records(baseline.run) or about["resume"] != "exact":
        reasons = [reason for entry in about["resumed"] for reason in entry.get("approximate", ())]
        text = _several([*reasons, *parts]) or "its metrics differ"
        exact = Verdict("exact resume", "failed", f"the resumed run is another one: {text}")
    complete = Verdict("checkpoints", "ok", "all that training changes is saved")
    if forgotten := differences(baseline.values, repeated.values):
        text = f"no state_dict holds what differs after a resume: {_several(forgotten)}"
        complete = Verdict("checkpoints", "failed", text)
    return [exact, complete]


def _parts_apart(first: Path, second: Path) -> list[str]:
    """Return the parts that differ in the last checkpoints of two runs."""
    expected, actual = (inspection.checkpoints(run, digest=True)[-1].parts for run in (first, second))
    return [path for path in expected if expected[path] != actual.get(path)]


def held_by_parts(trainer: Any) -> dict[str, str]:
    """Return the values in attributes of objects that a trainer reaches and that are not rlrun's, by path.

    Values are numbers, texts, arrays, tensors and random generators, also in lists and dicts. A class lists attributes
    that need not survive a resume: `momentary = ("_cache",)`.
    """
    values: dict[str, str] = {}
    visited: dict[int, Any] = {}  # they stay alive, so that no number is used again
    pending = deque([(trainer, "trainer", False)])  # in this order an object has its shortest path
    while pending:
        value, path, counts = pending.popleft()
        text = _text(value)
        if text is not None and counts:
            values[path] = text
        if text is not None or id(value) in visited:
            continue
        visited[id(value)] = value
        if isinstance(value, dict):
            parts = [(f"{path}[{key!r}]", part) for key, part in value.items() if not is_clock(str(key))]
        elif isinstance(value, list | tuple | deque):
            parts = [(f"{path}[{number}]", part) for number, part in enumerate(value)]
        elif hasattr(value, "__dict__") and not isinstance(value, type):
            counts = type(value).__module__.split(".")[0] not in FOREIGN
            momentary = {name for kind in type(value).__mro__ for name in vars(kind).get("momentary", ())}
            parts = [(f"{path}.{name}", part) for name, part in vars(value).items() if name not in momentary]
        else:
            continue
        pending.extend((part, name, counts) for name, part in parts)
    return values


def _text(value: Any) -> str | None:
    """Return a text that identifies a value; None for an object with parts."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, torch.Tensor | np.generic) or (isinstance(value, np.ndarray) and not value.dtype.hasobject):
        return f"{value.dtype} {list(value.shape)} {storage.digest(value)[:16]}"
    if isinstance(value, np.random.Generator):
        return f"generator {value.bit_generator.state}"
    if isinstance(value, torch.Generator):
        return f"generator {storage.digest(value.get_state())[:16]}"
    return f"generator {value.getstate()}" if isinstance(value, random.Random) else None


def differences(first: Mapping[str, str], second: Mapping[str, str]) -> list[str]:
    """Return the paths at which values differ, with both values."""
    return [
        f"{path}: {first.get(path, 'missing')[:80]} -> {second.get(path, 'missing')[:80]}"
        for path in sorted(first.keys() | second.keys())
        if first.get(path) != second.get(path)
    ]


def _several(lines: list[str], shown: int = 3) -> str:
    """Return the first lines of many, and how many more there are."""
    more = f" (and {len(lines) - shown} more)" if len(lines) > shown else ""
    return "; ".join(lines[:shown]) + more


def export(run: Path) -> Verdict:
    """Export a run's policy, and compare."""
    try:
        exported = export_onnx(run, episodes=2)
    except MissingExtra as error:
        return Verdict("export", "skipped", str(error))
    return Verdict("export", "ok", f"as it acts, within {exported.about['parity']['largest']:.1e}")


def truncation(overrides: Sequence[str], folder: Path, config_dir: Path | None, settings: Mapping[str, Any]) -> Verdict:
    """Return whether an algorithm bootstraps where an episode is truncated, and only there.

    It trains on episodes that differ only in their end (`rlrun.env.toys.Ending`), twice each, with different last
    observations. The last observation may change the parameters if episodes are truncated, through its value. It must
    not change them if episodes are terminated. Runs are compared bit for bit, so they need not learn anything, and no
    threshold is needed.

    Args:
        overrides: of a command that uses the algorithm, whose environment is replaced.
        folder: for the runs.
        config_dir: the user's own conf folder.
        settings: numbers that the user typed; they are kept.
    """
    base = [text for text in overrides if text.partition("=")[0].lstrip("+~").split(".")[0] != "env"]
    numbers = {key: value for key, value in OF_TRUNCATION.items() if key not in settings}

    @cache
    def learned(ending: str, last: float, reward: float = 1.0, *, continuous: bool = False) -> Learned:
        kwargs = {"ending": ending, "last": last, "reward": reward, "continuous": str(continuous).lower()}
        env = ["env=gym", "env.target=rlrun.env.toys.Ending", *(f"+env.kwargs.{k}={v}" for k, v in kwargs.items())]
        composed = shrink(compose([*base, "preset=null", *env], config_dir), numbers)
        return parameters(train(composed, run_dir=folder / f"{ending}_{last}_{reward}_{continuous}").trainer)

    try:
        try:
            learned("truncated", ONE)
        except SpaceError:  # the algorithm handles the other kind of actions
            return verdict_of_endings(lambda *ending: learned(*ending, continuous=True))
        return verdict_of_endings(learned)
    except RequestError as error:
        return Verdict("truncation", "skipped", f"it cannot be built on the probe's environment: {error}")


def verdict_of_endings(learned: Callable[..., Learned]) -> Verdict:
    """Return the verdict, from `learned`: parameters after training with an ending, a last observation and a reward."""
    cut, over = learned("truncated", ONE), learned("terminated", ONE)
    if not cut:
        return Verdict("truncation", "skipped", "it trains no network")
    cut_matters = cut != learned("truncated", OTHER)
    outcome: Outcome = "failed"
    if over != learned("terminated", OTHER):
        if cut == over:
            text = "an end by termination is bootstrapped from, as one by truncation is"
        elif not cut_matters:
            text = "an end by termination is bootstrapped from, and one by truncation is not"
        else:
            outcome = "skipped"
            text = "the last observation of terminated episodes is learned from, too, as a model or statistics do"
    elif cut_matters:
        outcome, text = "ok", "bootstraps where episodes are truncated, not where they are terminated"
    elif cut == learned("truncated", ONE, 0.25):
        outcome, text = "skipped", "it does not learn from rewards"
    else:
        text = "an end by truncation is not bootstrapped from: it counts as if nothing came after it"
    return Verdict("truncation", outcome, text)


def parameters(trainer: Any) -> Learned:
    """Return the bytes of all parameters of a run's networks."""
    return {
        f"{path}.{name}": value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        for path, part in trainer.state["parts"].items()
        if isinstance(part, torch.nn.Module)
        for name, value in part.named_parameters()
    }


def shrink(composed: Composed, numbers: Mapping[str, Any]) -> Composed:
    """Set numbers in a config in place, for the keys that it has; return it."""
    for key, value in numbers.items():
        if OmegaConf.select(composed.config, key, default=...) is not ...:
            OmegaConf.update(composed.config, key, OmegaConf.create(value) if str(value)[:1] == "[" else value)
    return composed


def copy_as_killed(run: Path, copy: Path, *, at: int) -> Path:
    """Copy a run to the state of a kill after its first checkpoint at or after some steps."""
    shutil.copytree(run, copy)
    directory = RunDir(copy)
    keys = {path: checkpoint_key(path) for path in directory.checkpoint_dirs()}
    checkpoints = [path for path, (steps, updates) in keys.items() if (steps or updates) >= at]  # updates, offline
    for path in checkpoints[1:]:
        shutil.rmtree(path)
    if len(checkpoints) < 2:
        raise RequestError("the run was over before its second checkpoint: stop.updates=… makes it longer")
    directory.summary.unlink()
    directory.status.unlink()  # so it counts as interrupted
    return checkpoints[0]


def records(run: Path) -> list[dict[str, Any]]:
    """Return the metrics of a run without those that depend on the clock."""
    lines = RunDir(run).metrics.read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if not is_clock(name)} for line in lines]

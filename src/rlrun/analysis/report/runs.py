"""Read runs, and jobs of a sweep, from their files.

No code from these files is executed, and their content is not trusted; folders may be read-only.
"""

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from rlrun.commands.ls import about as summarized
from rlrun.config.files import parse_yaml
from rlrun.config.interpolation import dotted, leaves
from rlrun.config.schema import CHANGEABLE
from rlrun.core.errors import RlrunError, RunDirError
from rlrun.core.files import known, read_bytes
from rlrun.runs.directory import RunDir, runs_beneath
from rlrun.runs.progress import last_line, lines_of, number_of, record_of
from rlrun.sweep.directory import SweepDir
from rlrun.sweep.sweeping import is_sweep

EVALUATED, PLAYED = "evaluation/mean_return", "episode/return"
METRIC_BYTES = 1 << 28  # most bytes of a metrics file that are read
SEED = re.compile(r"^seed:.*$", re.MULTILINE)
TASK = ("env", "env.id", "env.target", "env.kwargs", "env.reset_options")  # keys that define a task
VIDEOS = (".mp4", ".gif", ".webm")
MACHINE = ("host", "rlrun", "torch")  # keys in manifests
REASONS = {"pruned": "its search left it for better ones"}

Curve: TypeAlias = dict[float, float]  # environment step (update, without an environment) -> value


@dataclass(frozen=True)
class Run:
    """A run, or a job of a sweep without a run."""

    path: Path  # of its folder
    source: Path  # the folder on the command line that contains it
    overrides: Mapping[str, str]  # of its command line, by key
    seed: int | None  # None if unknown
    task: str  # name of the environment
    status: str  # of the run; `missing` without a folder, `damaged` if it cannot be read
    reason: str | None = None  # why it is not completed, if known
    curves: Mapping[str, Curve] = field(default_factory=dict)  # finite values of each requested metric
    broken: frozenset[str] = frozenset()  # metrics whose last value is not finite
    env_steps: float | None = None  # these three: None if unknown
    updates: float | None = None
    seconds: float | None = None
    # The config by dotted key, without seed, task and machine:
    settings: Mapping[str, Any] = field(default_factory=dict)
    circumstances: Mapping[str, Any] = field(default_factory=dict)  # machine and versions, by name
    created: str = ""  # time of its beginning in the manifest
    videos: tuple[Path, ...] = ()

    @property
    def steps(self) -> float:
        """Environment steps, or updates without an environment; 0 if unknown."""
        return self.env_steps or self.updates or 0.0

    @property
    def speed(self) -> float | None:
        """Steps per second, if known."""
        return self.steps / self.seconds if self.steps and self.seconds else None


def gather(folders: Iterable[Path], metrics: Iterable[str]) -> list[Run]:
    """Return the runs in some folders and their subfolders, each once."""
    runs: dict[Path, Run] = {}
    wanted = tuple(metrics)
    for folder in folders:
        for directory in runs_beneath(folder):
            place = directory.path.resolve()
            if place not in runs:
                runs[place] = _run(directory, folder, wanted)
    return list(runs.values())


def add_jobs(runs: list[Run], folders: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """Add jobs of sweeps that have no run, and the reasons why other jobs failed.

    Returns:
        The runs, and reading errors.
    """
    by_path, troubles = {run.path.resolve(): run for run in runs}, []
    tasks = {_env_overrides(run.overrides): run.task for run in runs}
    above = [(place, run.source) for run in runs for place in run.path.parents]
    sweeps = [(folder, folder) for folder in folders]
    sweeps += [(place, source) for place, source in above if place.is_relative_to(source)]
    for folder, source in dict.fromkeys(sweeps):
        try:
            sweep = SweepDir(folder)
            statuses = sweep.statuses() if is_sweep(folder) else []
        except RunDirError as error:
            troubles.append(str(error))
            continue
        for job, state, _, why in statuses:
            place, overrides = sweep.run(job).path, _by_key(job.overrides)
            run = by_path.get(place.resolve())  # a folder may be given twice
            reason = why or REASONS.get(state)
            if run is None:
                task = tasks.get(_env_overrides(overrides), _task_of(overrides))
                by_path[place.resolve()] = _without_run(place, source, overrides, task, state, reason)
            elif run.status != "completed" and reason:
                by_path[place.resolve()] = replace(run, reason=reason)
    return list(by_path.values()), troubles


def is_circumstance(key: str) -> bool:
    """Return True if a config key concerns the task, the seed or the logging of a run, not its method."""
    circumstances = (*TASK[1:], *(name for name in CHANGEABLE if name not in ("stop", "evaluation")), "seed", "expect")
    return any(f"{key}.".startswith(f"{name}.") for name in circumstances)


def _run(directory: RunDir, source: Path, metrics: tuple[str, ...]) -> Run:
    """Read a run from its files; if its config cannot be read, its status is `damaged`."""
    row, about = summarized(directory), known(directory.manifest)
    overrides, status, reason = _by_key(row.overrides), row.status, None
    try:
        text = read_bytes(directory.config).decode(errors="replace")
        settings, task = _settings(SEED.sub("", text))
    except RlrunError as error:
        settings, task, status, reason = {}, _task_of(overrides), "damaged", str(error)
    if status == "failed":
        reason = last_line(directory.log)
    curves, broken = _curves(directory.metrics, metrics)
    seed, packages = about.get("seed"), about.get("packages")
    circumstances = {**about, **(packages if isinstance(packages, dict) else {})}
    return Run(
        path=directory.path,
        source=source,
        overrides=overrides,
        seed=seed if isinstance(seed, int) else None,
        task=task,
        status=status,
        reason=reason,
        curves=curves,
        broken=broken,
        settings=settings,
        circumstances={name: circumstances.get(name) for name in MACHINE},
        created=row.created or "",
        videos=tuple(sorted(path for path in directory.videos.glob("*") if path.suffix in VIDEOS)),
        **{name: _count(getattr(row, name)) for name in ("env_steps", "updates", "seconds")},
    )


def _by_key(lines: Iterable[str]) -> dict[str, str]:
    """Return the overrides of a command line by key; the last of each key counts, but every `+with=…` does."""
    overrides = {}
    for line in filter(None, map(str.strip, lines)):
        key = line.partition("=")[0].lstrip("+~").strip()
        overrides[line.lstrip("+") if key == "with" else key] = line
    return overrides


def _task_of(overrides: Mapping[str, str]) -> str:
    """Return the task in overrides, or `as configured`."""
    named = [overrides[key].partition("=")[2] for key in ("env.id", "env.target", "env") if key in overrides]
    return named[0] if named else "as configured"


def _env_overrides(overrides: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(sorted(text for key, text in overrides.items() if key.split(".")[0] in ("env", "preset")))


def _curves(path: Path, metrics: tuple[str, ...]) -> tuple[dict[str, Curve], frozenset[str]]:
    """Return the curves of some metrics in a file, and the metrics whose last value is not finite.

    Lines without a step and incomplete or malformed lines are ignored.
    """
    needles = {metric: json.dumps(metric).encode() for metric in metrics}
    curves: dict[str, Curve] = {metric: {} for metric in metrics}
    broken: set[str] = set()
    with suppress(RlrunError):
        for line in lines_of(path, METRIC_BYTES):
            named = [metric for metric, needle in needles.items() if needle in line]
            record = (record_of(line) if named else None) or {}
            place = _count(record.get("env_steps") or record.get("updates"))
            for metric in named if place is not None else ():
                value = number_of(record.get(metric))
                if value is not None and place is not None:
                    curves[metric][place] = value
                    broken.discard(metric)
                elif metric in record:
                    broken.add(metric)
    return {metric: dict(sorted(curve.items())) for metric, curve in curves.items() if curve}, frozenset(broken)


def _count(value: Any) -> float | None:
    number = number_of(value)
    return number if number is not None and number >= 0 else None


@lru_cache(maxsize=32)  # runs of a group only differ in their seeds
def _settings(text: str) -> tuple[Mapping[str, Any], str]:
    """Return a config by dotted key, without seed, task and machine, and the task's name."""
    tree = parse_yaml(text, "config.yaml")
    env = tree.get("env")
    env = env if isinstance(env, dict) else {}
    named = next((str(env[key]) for key in ("id", "target") if env.get(key)), "no environment")
    extra = [json.dumps(env[key], default=str) for key in ("kwargs", "reset_options") if env.get(key)]
    flat = {dotted(path): value for path, value in leaves(tree)}
    return {key: value for key, value in flat.items() if not is_circumstance(key)}, " ".join([named, *extra])


def _without_run(path: Path, source: Path, overrides: dict[str, str], task: str, state: str, reason: str | None) -> Run:
    _, _, seed = overrides.get("seed", "").partition("=")
    return Run(
        path=path,
        source=source,
        overrides=overrides,
        seed=int(seed) if seed.isdecimal() and len(seed) < 20 else 0 if not seed else None,
        task=task,
        status="failed" if state == "failed" else "missing",
        reason=reason or {"completed": "its folder is gone", "pending": "it was never started"}.get(state),
    )

"""What a report knows of a run, from its files alone. Nothing of what is read is executed, or believed to be ours."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from rlrun.config.files import parse_yaml
from rlrun.config.schema import CHANGEABLE
from rlrun.config.tree import dotted, leaves
from rlrun.contrast import CIRCUMSTANCES
from rlrun.errors import RlrunError
from rlrun.files import known, read_bytes
from rlrun.rundir import RunDir, runs_beneath
from rlrun.watching import last_line, lines_of, number_of, record_of

EVALUATED, PLAYED = "evaluation/mean_return", "episode/return"
CONFIG_BYTES = 1 << 20
METRIC_BYTES = 1 << 28  # of a file of metrics; what lies beyond is not read
SEED = re.compile(r"^seed:.*$", re.MULTILINE)
TASK = ("env", "env.id", "env.target", "env.kwargs", "env.reset_options")  # what makes a task
VIDEOS = (".mp4", ".gif", ".webm")

Curve: TypeAlias = dict[float, float]  # by environment steps, or updates without an environment


@dataclass(frozen=True)
class Run:
    """A run, or a job of a sweep that has none.

    Attributes:
        path: of its folder.
        source: the folder on the command line beneath which it was found.
        words: of its command line, by key.
        seed: None where nothing says it.
        task: the environment, as people name it.
        status: of the run; `missing` where there is no folder, `damaged` where it cannot be read.
        reason: why it is not completed, as far as it is known.
        curves: finite values of each metric that was asked for.
        broken: metrics whose last value is no number that can be used.
        env_steps, updates, seconds: None where nothing says it.
        settings: the config by dotted key, without seed, task and machine.
        circumstances: machine and versions, by name.
        created: when it began, as the manifest has it.
        videos: files.
    """

    path: Path
    source: Path
    words: Mapping[str, str]
    seed: int | None
    task: str
    status: str
    reason: str | None = None
    curves: Mapping[str, Curve] = field(default_factory=dict)
    broken: frozenset[str] = frozenset()
    env_steps: float | None = None
    updates: float | None = None
    seconds: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    circumstances: Mapping[str, Any] = field(default_factory=dict)
    created: str = ""
    videos: tuple[Path, ...] = ()

    @property
    def steps(self) -> float:
        """Environment steps, or updates without an environment; 0 where nothing says it."""
        return self.env_steps or self.updates or 0.0

    @property
    def speed(self) -> float | None:
        """Steps a second."""
        return self.steps / self.seconds if self.steps and self.seconds else None


def gather(folders: Iterable[Path], metrics: Iterable[str]) -> list[Run]:
    """Return the runs in some folders and beneath them, each once."""
    runs: dict[Path, Run] = {}
    wanted = tuple(metrics)
    for folder in folders:
        for directory in runs_beneath(folder):
            place = directory.path.resolve()
            if place not in runs:
                runs[place] = read(directory, folder, wanted)
    return list(runs.values())


def read(directory: RunDir, source: Path, metrics: tuple[str, ...]) -> Run:
    """Return what the files of a run say; one whose config cannot be read is `damaged`."""
    about, summary = known(directory.manifest), known(directory.summary)
    words = _words(directory)
    status, reason = str(directory.read_status()["status"]), None
    try:
        config = read_bytes(directory.config, most=CONFIG_BYTES, follow=True).decode(errors="replace")
        settings, task = _settings(SEED.sub("", config))
    except RlrunError as error:
        settings, task, status, reason = {}, task_of(words), "damaged", str(error)
    if status == "failed":
        reason = last_line(directory.log)
    curves, broken, last = read_curves(directory.metrics, metrics)
    figures = {name: _count(summary.get(name, last.get(name))) for name in ("env_steps", "updates", "seconds")}
    seed = about.get("seed")
    return Run(
        path=directory.path,
        source=source,
        words=words,
        seed=seed if isinstance(seed, int) else None,
        task=task,
        status=status,
        reason=reason,
        curves=curves,
        broken=broken,
        settings=settings,
        circumstances=_circumstances(about),
        created=str(about.get("created") or ""),
        videos=_videos(directory),
        **figures,
    )


def by_key(lines: Iterable[str]) -> dict[str, str]:
    """Return the words of a command line by key, the last of a key; of `+with=…` each one counts."""
    words = {}
    for line in filter(None, map(str.strip, lines)):
        key = line.partition("=")[0].lstrip("+~").strip()
        words[line.lstrip("+") if key == "with" else key] = line
    return words


def task_of(words: Mapping[str, str]) -> str:
    """Return the task that some words name."""
    named = [words[key].partition("=")[2] for key in ("env.id", "env.target", "env") if key in words]
    return named[0] if named else "as configured"


def is_circumstance(key: str) -> bool:
    """Tell whether a key of the config says on which task, by which seed or how watched a run is, not what it is."""
    beside = (*TASK[1:], *(name for name in CHANGEABLE if name not in ("stop", "evaluation")), "seed", "expect")
    return any(f"{key}.".startswith(f"{name}.") for name in beside)


def read_curves(path: Path, metrics: tuple[str, ...]) -> tuple[dict[str, Curve], frozenset[str], dict[str, Any]]:
    """Return the values of some metrics in a file, which of them end in what is no number, and the last whole record.

    A line that is no JSON, was cut off or has no place on the axis says nothing.
    """
    needles = {metric: json.dumps(metric).encode() for metric in metrics}
    curves: dict[str, Curve] = {metric: {} for metric in metrics}
    broken: set[str] = set()
    final, last = b"", dict[str, Any]()
    for line in _lines(path):
        final = line
        named = [metric for metric, needle in needles.items() if needle in line]
        record = (record_of(line) if named else None) or {}
        place = _count(record.get("env_steps") or record.get("updates"))
        last = record or last
        for metric in named if place is not None else ():
            value = number_of(record.get(metric))
            if value is not None and place is not None:
                curves[metric][place] = value
                broken.discard(metric)
            elif metric in record:
                broken.add(metric)
    ordered = {metric: dict(sorted(curve.items())) for metric, curve in curves.items() if curve}
    return ordered, frozenset(broken), record_of(final) or last


def _lines(path: Path) -> Iterator[bytes]:
    with suppress(RlrunError):
        yield from lines_of(path, METRIC_BYTES)


def _count(value: Any) -> float | None:
    number = number_of(value)
    return number if number is not None and number >= 0 else None


def _words(directory: RunDir) -> dict[str, str]:
    with suppress(RlrunError):
        text = read_bytes(directory.overrides, most=CONFIG_BYTES, follow=True).decode(errors="replace")
        return by_key(text.splitlines())
    return {}


@lru_cache(maxsize=32)  # runs of an arm differ by their seeds only
def _settings(text: str) -> tuple[Mapping[str, Any], str]:
    tree = parse_yaml(text, "config.yaml")
    env = tree.get("env")
    env = env if isinstance(env, dict) else {}
    named = next((str(env[key]) for key in ("id", "target") if env.get(key)), "no environment")
    extra = [json.dumps(env[key], default=str) for key in ("kwargs", "reset_options") if env.get(key)]
    flat = {dotted(path): value for path, value in leaves(tree)}
    return {key: value for key, value in flat.items() if not is_circumstance(key)}, " ".join([named, *extra])


def _circumstances(about: Mapping[str, Any]) -> dict[str, Any]:
    packages = about.get("packages")
    circumstances = {name: about.get(name) for name in CIRCUMSTANCES if name not in ("resume", "parent")}
    git = circumstances.pop("git", None)
    commit = git.get("commit") if isinstance(git, dict) else None
    return {**circumstances, "commit": commit, **(packages if isinstance(packages, dict) else {})}


def _videos(directory: RunDir) -> tuple[Path, ...]:
    try:
        return tuple(sorted(path for path in directory.videos.iterdir() if path.suffix in VIDEOS))
    except OSError:
        return ()

"""Whether two runs came to the same, bit for bit: what their last checkpoints hold, and their metrics."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from rlrun import checkpointing as storage
from rlrun.core.clock import is_clock
from rlrun.runs.directory import RunDir

GROUPS = ("parameters", "optimizers", "memory", "generators", "the rest", "metrics")
GENERATORS = {"generator", "generators", "rng", "random", "uniform"}
WATCHED = ("evaluation", "logger", "checkpoint", "memory_export", "budget")  # callbacks that only look on


def compare(one: Path, other: Path, *, watched: bool = True) -> dict[str, bool]:
    """Tell by group whether two runs are identical, times aside.

    Args:
        one: a run's folder.
        other: another's.
        watched: False leaves out metrics, and callbacks on which training does not depend.
    """
    first, second = (_by_group(_last(run), watched=watched) for run in (one, other))
    matches = {group: storage.digest(first[group]) == storage.digest(second[group]) for group in GROUPS[:-1]}
    return matches | ({"metrics": _reported(one) == _reported(other)} if watched else {})


def differing(one: Path, other: Path) -> list[str]:
    """Return the entries of the last checkpoints that are not the same, for who looks for the reason."""
    first, second = (dict(_leaves(_last(run), ())) for run in (one, other))
    return [
        "/".join(path)
        for path in sorted(first.keys() | second.keys())
        if path not in first or path not in second or storage.digest(first[path]) != storage.digest(second[path])
    ]


def stamps(folder: Path) -> list[tuple[Path, int]]:
    """Return all that lies in a folder with the time of its last change, by which one sees that nothing changed."""
    return sorted((path, path.lstat().st_mtime_ns) for path in folder.rglob("*"))


def records(run: Path) -> list[dict[str, Any]]:
    """Return the metrics of a run without those that depend on the clock."""
    lines = RunDir(run).metrics.read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if not is_clock(name)} for line in lines]


def _reported(run: Path) -> Any:
    summary = json.loads(RunDir(run).summary.read_text())
    return records(run), {name: value for name, value in summary.items() if not is_clock(name)}


def _last(run: Path) -> dict[str, Any]:
    return storage.load(RunDir(run).checkpoint("latest"))


def _by_group(states: Mapping[str, Any], *, watched: bool) -> dict[str, dict[str, Any]]:
    groups: dict[str, dict[str, Any]] = {group: {} for group in GROUPS[:-1]}
    for path, value in _leaves(states, ()):
        if watched or path[0] not in [f"callbacks.{name}" for name in WATCHED]:
            groups[_group(path, value)]["/".join(path)] = value
    return groups


def _leaves(state: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Walk to whatever is no mapping; entries that depend on the clock are left out."""
    if not isinstance(state, Mapping):
        yield path, state
        return
    for key, value in state.items():
        if not is_clock(str(key)):
            yield from _leaves(value, (*path, str(key)))


def _group(path: tuple[str, ...], value: Any) -> str:
    if not GENERATORS.isdisjoint(path):
        return "generators"
    if path[0] == "memory":
        return "memory"
    if "optimizer" in path:
        return "optimizers"
    return "parameters" if isinstance(value, torch.Tensor) and value.is_floating_point() else "the rest"

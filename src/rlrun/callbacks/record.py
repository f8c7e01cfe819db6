"""A record of metrics, and what sinks say of its run."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlrun.core.errors import RunDirError
from rlrun.runs.directory import RunDir

FINAL, BEST = "evaluation/mean_return", "evaluation/best_return"
LETTERS = 128  # in a name or a group of W&B
Record = dict[str, Any]  # env_steps, updates, seconds, and metrics by full name


def axis_of(record: Mapping[str, Any], offline: int = 0, axis: str = "env_steps") -> int:
    """Return a record's place on an axis; that of environment steps is updates where there are no steps.

    offline: updates before the first environment step, which comes after them.
    """
    if axis != "env_steps":
        return int(record[axis])
    return offline + int(record["env_steps"]) if record["env_steps"] else int(record["updates"])


def hyperparameters(run: RunDir, config: Mapping[str, Any]) -> dict[str, float | str]:
    """Return the algorithm's numbers and texts, the environment's id, the seed, and the overrides, by config key."""
    values = {f"algorithm.{name}": value for name, value in (config.get("algorithm") or {}).items()}
    values |= {"env.id": (config.get("env") or {}).get("id"), "seed": config.get("seed")}
    for override in run.read_overrides():
        key, _, text = override.lstrip("+~").partition("=")
        values.setdefault(key, text)
    return {name: value for name, value in values.items() if isinstance(value, int | float | str)}


def files_of(run: RunDir) -> dict[str, list[tuple[Path, str]]]:
    """Return the files of the best checkpoint, the exports and the videos, each with its path in there."""
    folders = {"exports": run.exports, "videos": run.videos}
    with suppress(RunDirError):
        folders["checkpoint"] = run.checkpoint("best")
    files = {
        name: [(path, path.relative_to(folder).as_posix()) for path in sorted(folder.rglob("*"))]
        for name, folder in folders.items()
    }
    plain = {
        name: [(path, place) for path, place in paths if path.is_file() and not path.is_symlink()]
        for name, paths in files.items()
    }
    return {name: paths for name, paths in plain.items() if paths}


def titles(run: RunDir, config: Mapping[str, Any]) -> tuple[str, str]:
    """Return what a run's group and the run are called at a service: its overrides, and those with its seed."""
    group = " ".join(override for override in run.read_overrides() if not override.startswith(("seed=", "logger=")))
    return group[:LETTERS], f"{group[: LETTERS - 10]} s{config.get('seed')}" if group else run.path.name

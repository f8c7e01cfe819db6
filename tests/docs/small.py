"""Runs of a moment: the overrides of a page stay, and all other sizes are small."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from tests.short import shrink

from rlrun.cli import sweeping
from rlrun.config.composition import Composed, Composer

# Put in where a config has the key and the command line does not.
SIZES: dict[str, Any] = {
    "stop.env_steps": 48,
    "stop.updates": 3,
    "evaluation.episodes": 2,
    "evaluation.max_steps": 10,
    "algorithm.hidden": [4],
    "algorithm.vae_hidden": [4],
    "algorithm.batch_size": 8,
    "algorithm.warmup_steps": 16,
    "algorithm.horizon": 16,
    "algorithm.epochs": 1,
    "algorithm.round": 16,
    "memory.length": 1_000,
    "offline.updates": 2,
    "data.dataset.rows": 400,
}
# Overrides that a search is given where it has none of the key.
SEARCH = {"sweep.trials": 2, "sweep.top": 1, "sweep.fresh_seeds": 1}
JOBS = 2  # of a sweep that run: the first and the last; all of them are composed


def keys(overrides: Sequence[str]) -> list[str]:
    """Return which keys overrides set."""
    return [override.partition("=")[0].lstrip("+~") for override in overrides if "=" in override]


@contextmanager
def small_runs() -> Iterator[None]:
    """Whatever is composed in this process is small, and of the jobs of a sweep two run."""
    compose, expand = Composer.compose, sweeping.expand

    def small(self: Composer, *args: Any, **options: Any) -> Composed:
        composed = compose(self, *args, **options)
        sizes = {key: size for key, size in SIZES.items() if key not in keys(composed.overrides)}
        if OmegaConf.select(composed.config, "stop.env_steps") is None:  # nothing is collected
            sizes.pop("stop.env_steps", None)
        return shrink(composed, sizes)

    def few(*args: Any, **options: Any) -> list[Any]:
        jobs = expand(*args, **options)
        return [*jobs[: JOBS - 1], jobs[-1]] if len(jobs) > JOBS else jobs

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Composer, "compose", small)
        patch.setattr(sweeping, "expand", few)  # and not where it is defined: who imports it meanwhile would keep it
        yield


def with_less(overrides: Sequence[str], folder: Path) -> list[str]:
    """Return words of `rlrun` with those that make a command short, which composing cannot: options, and budgets."""
    command, added = overrides[0], []
    if command == "resume":
        added += _budget(folder / overrides[1])
    if command == "eval" and "--video" in overrides and "--videos" not in overrides:
        added += ["--videos", "1"]
    if command == "play" and "--fps" not in overrides:
        added += ["--fps", "1000"]
    if any(override.startswith("+sweep=") for override in overrides):
        added += [f"{key}={value}" for key, value in SEARCH.items() if key not in keys(overrides)]
    return [*overrides, *added]


def _budget(run: Path) -> list[str]:
    """Return a word by which a run goes on for two updates more, whatever its budget of steps."""
    checkpoints = sorted(path.name for path in (run / "checkpoints").glob("[0-9]*"))
    return [f"stop.updates={int(checkpoints[-1].partition('-')[2]) + 2}"] if checkpoints else []


def overrides_of(run: Path) -> list[str]:
    """Return the overrides that a run was begun with."""
    return (run / "overrides.txt").read_text().splitlines()

"""The lists and helpers of `tests/conf/test_every_config.py`, which lies in another folder."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from omegaconf import OmegaConf

from rlrun.config import Composed, compose

_place = Path(__file__).parents[1] / "conf" / "test_every_config.py"
_spec = importlib.util.spec_from_file_location("every_config", _place)
assert _spec is not None
assert _spec.loader is not None
_every = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_every)

APPROXIMATE = ("with/async",)  # goes on with new episodes and says so: tests/cli/test_async.py
FILES: list[str] = [file for file in _every.RUN if _every.missing_extra(file) is None and file not in APPROXIMATE]
AT = 18  # environment steps of a checkpoint on the way
SMALL = {
    **_every.SMALL,
    "algorithm.warmup_steps": 12,
    "memory.length": 100,
    "algorithm.horizon": 6,  # so that a rollout of three lanes ends with the checkpoint
    "algorithm.epochs": 2,
    "stop.env_steps": None,
    "stop.updates": 24,
    "callbacks.learning_rate.value.steps": 1_000,
    "checkpoint.every": AT,
    "checkpoint.keep_last": None,
    "log.every": 5,
}
FULL = {"memory.length": 56, "stop.updates": 60}  # so that rows leave the memory


def small(file: str, *, lanes: int) -> Composed:
    """Return what a command composes that uses a file, with small numbers for the keys that there are."""
    _every.provide(_every.words_of(file))
    composed = compose(_every.words_of(file))
    full = FULL if file.startswith("memory/") else {}
    for key, value in (SMALL | full | {"num_envs": lanes}).items():
        if OmegaConf.select(composed.config, key, default=...) is not ...:
            OmegaConf.update(composed.config, key, OmegaConf.create(value) if str(value)[:1] == "[" else value)
    return composed

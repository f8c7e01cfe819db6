"""Numbers with which any algorithm is quick, and what stands in a command beside a file that is tried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omegaconf import OmegaConf

from rlrun.config import Composed

BESIDE = {
    "algorithm": ["env=cartpole"],
    "env": ["algorithm=sac"],
    "memory": ["algorithm=sac", "env=cartpole"],
    "with": ["algorithm=sac", "env=pendulum"],
    "experiment": [],
}
SMALL = {  # of some updates
    "algorithm.hidden": "[8,8]",
    "algorithm.batch_size": 4,
    "algorithm.warmup_steps": 16,
    "algorithm.horizon": 8,
    "algorithm.unroll": 2,
    "offline.updates": 2,
    "evaluation.every": 1_000_000,  # so once, at the end
    "evaluation.episodes": 1,
    "evaluation.max_steps": 5,
    "stop.updates": 3,
    "logger": "[]",
}
AT = 18  # environment steps of a checkpoint on the way
RESUMED = {  # of a run that is left there
    **SMALL,
    "algorithm.warmup_steps": 12,
    "memory.length": 100,
    "algorithm.horizon": 6,  # so that a rollout of three lanes ends with the checkpoint
    "algorithm.epochs": 2,
    "offline.updates": 4,
    "stop.env_steps": None,
    "stop.updates": 24,
    "callbacks.learning_rate.value.steps": 1_000,
    "checkpoint.every": AT,
    "checkpoint.keep_last": None,
    "log.every": 5,
}


def shrink(composed: Composed, numbers: Mapping[str, Any]) -> Composed:
    """Put numbers into a config in place, for the keys that there are; return it."""
    for key, value in numbers.items():
        if OmegaConf.select(composed.config, key, default=...) is not ...:
            OmegaConf.update(composed.config, key, OmegaConf.create(value) if str(value)[:1] == "[" else value)
    return composed

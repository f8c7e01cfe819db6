"""Small runs: numbers with which any algorithm is quick, a run as a kill leaves it, and its metrics."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rlrun.checkpointing.encoding import is_clock
from rlrun.config import Composed
from rlrun.core.errors import RequestError
from rlrun.runs.directory import RunDir, checkpoint_key

BESIDE = {  # what stands in a command beside a file of a group that is tried
    "algorithm": ["env=cartpole"],
    "env": ["algorithm=sac"],
    "memory": ["algorithm=sac", "env=cartpole"],
    "with": ["algorithm=sac", "env=pendulum"],
    "preset": [],
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


def shrink(composed: Composed, numbers: Mapping[str, Any]) -> Composed:
    """Put numbers into a config in place, for the keys that there are; return it."""
    for key, value in numbers.items():
        if OmegaConf.select(composed.config, key, default=...) is not ...:
            OmegaConf.update(composed.config, key, OmegaConf.create(value) if str(value)[:1] == "[" else value)
    return composed


def leave(run: Path, copy: Path, *, at: int) -> Path:
    """Copy a run as it lies there when it was killed after its first checkpoint at or after some steps."""
    shutil.copytree(run, copy)
    directory = RunDir(copy)
    keys = {path: checkpoint_key(path) for path in directory.checkpoint_dirs()}
    checkpoints = [path for path, (steps, updates) in keys.items() if (steps or updates) >= at]  # updates, offline
    for path in checkpoints[1:]:
        shutil.rmtree(path)
    if len(checkpoints) < 2:
        raise RequestError("the run was over before its second checkpoint: stop.updates=… makes it longer")
    directory.summary.unlink()
    gone = subprocess.Popen([sys.executable, "-S", "-c", ""])
    gone.wait()
    status = {**json.loads(directory.status.read_text()), "status": "running", "pid": gone.pid}
    directory.status.write_text(json.dumps(status))
    return checkpoints[0]


def records(run: Path) -> list[dict[str, Any]]:
    """Return the metrics of a run without those that depend on the clock."""
    lines = RunDir(run).metrics.read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if not is_clock(name)} for line in lines]

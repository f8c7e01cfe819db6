"""Short runs: numbers that make any config small, and copies as after a kill."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rlrun.config import Composed
from rlrun.core.clock import is_clock
from rlrun.runs.directory import RunDir, checkpoint_key

SMALL = {  # of some updates
    "algorithm.hidden": "[8,8]",
    "algorithm.batch_size": 4,
    "algorithm.particles": 4,
    "algorithm.members": 3,
    "algorithm.warmup_steps": 16,
    "algorithm.slots": 3,
    "algorithm.predictor.lstm_size": "[8]",
    "algorithm.actor.lstm_size": "[8]",
    "algorithm.prediction": "[8]",
    "algorithm.network.hidden": "[8]",
    "algorithm.critic.hidden": "[8,8]",
    "algorithm.horizon": 6,
    "algorithm.plan.horizon": 4,
    "algorithm.plan.population": 6,
    "algorithm.plan.elite": 3,
    "algorithm.min_updates": 2,
    "algorithm.plan.iterations": 2,
    "algorithm.plan.particles": 2,
    "algorithm.steps": 3,
    "algorithm.search.simulations": 4,
    "algorithm.model_every": 6,
    "imagination.episodes": 6,
    "imagination.every": 1,
    "imagination.model.hidden": "[8,8]",
    "imagination.model.every": 6,
    "imagination.model.min_updates": 4,
    "imagination.model.held_out": 0.4,
    "muzero_representation.hidden": "[8]",
    "muzero_representation.dynamics": "[8]",
    "muzero_representation.prediction": "[8]",
    "muzero_representation.latent": 4,
    "muzero_representation.batch_size": 4,
    "muzero_representation.warmup_steps": 8,
    "muzero_representation.every": 3,
    "muzero_representation.updates": 2,
    "muzero_representation.target_every": 3,
    "algorithm.held_out": 0.4,
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
    assert len(checkpoints) > 1, "the run was over before its second checkpoint"
    directory.summary.unlink()
    directory.status.unlink()  # so it counts as interrupted
    return checkpoints[0]


def records(run: Path) -> list[dict[str, Any]]:
    """Return the metrics of a run without those that depend on the clock."""
    lines = RunDir(run).metrics.read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if not is_clock(name)} for line in lines]

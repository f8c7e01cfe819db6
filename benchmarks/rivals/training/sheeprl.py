"""sheeprl, by the overrides of its own command, with the numbers of a run of rlrun; it logs, tests and saves nothing.

Its PPO and A2C have an encoder below policy and value, and so more parameters.
"""

from __future__ import annotations

import sys
from typing import Any

from sheeprl.cli import run

from benchmarks.rivals.training.work import Work

PACKAGES = ("sheeprl",)
QUIET = (
    *("env.capture_video=False", "env.sync_env=True", "metric.log_level=0", "algo.run_test=False"),
    *("checkpoint.every=1000000000", "checkpoint.save_last=False", "buffer.checkpoint=False", "buffer.memmap=False"),
    *("fabric.accelerator=cpu", "fabric.devices=1"),
)
Numbers = dict[str, Any]


def train(work: Work) -> None:
    """Go on past the window."""
    numbers = work.numbers
    overrides = [f"exp={work.algorithm}", f"env.id={work.env}", f"env.num_envs={numbers['num_envs']}"]
    overrides += [f"algo.gamma={numbers['discount']}", f"algo.total_steps={10 * work.last}", *QUIET]
    sys.argv[1:] = [*overrides, *(sac if work.algorithm == "sac" else on_policy)(numbers)]
    run()


def sac(numbers: Numbers) -> list[str]:
    """Return the overrides of one update a step."""
    rates = [f"algo.{network}.optimizer.lr={numbers['lr']}" for network in ("actor", "critic", "alpha")]
    return [
        *rates,
        f"algo.hidden_size={numbers['hidden'][0]}",
        f"algo.tau={numbers['tau']}",
        f"algo.learning_starts={numbers['warmup_steps']}",
        f"algo.per_rank_batch_size={numbers['batch_size']}",
        f"algo.alpha.alpha={numbers['temperature']['initial']}",
        f"buffer.size={numbers['length']}",
    ]


def on_policy(numbers: Numbers) -> list[str]:
    """Return those of PPO, and of A2C, whose minibatch is the rollout, with Adam."""
    rows = numbers["horizon"] * numbers["num_envs"]
    overrides = [
        f"algo.rollout_steps={numbers['horizon']}",
        f"algo.dense_units={numbers['hidden'][0]}",
        f"algo.per_rank_batch_size={numbers.get('batch_size', rows)}",
        f"algo.gae_lambda={numbers['lambda']}",
        f"algo.ent_coef={numbers['entropy_weight']}",
        f"algo.vf_coef={numbers['value_weight']}",
        f"algo.max_grad_norm={numbers['max_grad_norm']}",
        f"algo.optimizer.lr={numbers['lr']}",
    ]
    if "epochs" not in numbers:
        return ["optim@algo.optimizer=adam", "algo.loss_reduction=mean", *overrides]
    clipped = [f"algo.update_epochs={numbers['epochs']}", f"algo.clip_coef={numbers['clip']}"]
    return [*overrides, *clipped, f"algo.normalize_advantages={numbers['normalize']}"]

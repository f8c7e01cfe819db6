"""The command of sheeprl to be timed: python -m benchmarks.rivals.peer_sheeprl NAME NUMBERS BEGUN.

As peer_stable_baselines3. Its PPO has an encoder before policy and value, hence more parameters.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from benchmarks.rivals.counted import count

QUIET = (
    *("metric.log_level=0", "metric.disable_timer=True", "checkpoint.every=0", "checkpoint.save_last=False"),
    *("buffer.checkpoint=False", "buffer.memmap=False", "algo.run_test=False", "model_manager.disabled=True"),
    *("env.capture_video=False", "env.sync_env=True", "fabric.accelerator=cpu", "fabric.devices=1", "num_threads=1"),
)


def words(name: str, numbers: dict[str, Any]) -> list[str]:
    """Return what is typed behind `sheeprl`."""
    shared = [f"exp={name}", "env=gym", f"env.id={numbers['env']}", f"env.num_envs={numbers['num_envs']}", *QUIET]
    shared += [f"algo.total_steps={10 * numbers['last']}", f"algo.per_rank_batch_size={numbers['batch_size']}"]
    shared += [f"algo.gamma={numbers['discount']}"]
    if name == "sac":
        shared += [f"algo.hidden_size={numbers['hidden'][0]}", f"algo.learning_starts={numbers['warmup_steps']}"]
        shared += [f"buffer.size={numbers['length']}", f"algo.tau={numbers['target_rate']}"]
        return [*shared, *(f"algo.{part}.optimizer.lr={numbers['lr']}" for part in ("actor", "critic", "alpha"))]
    shared += [f"algo.rollout_steps={numbers['horizon']}", f"algo.update_epochs={numbers['epochs']}"]
    shared += [f"algo.dense_units={numbers['hidden'][0]}", f"algo.mlp_layers={len(numbers['hidden'])}"]
    shared += [f"algo.gae_lambda={numbers['lambda']}", f"algo.clip_coef={numbers['clip']}"]
    shared += [f"algo.vf_coef={numbers['value_weight']}", f"algo.max_grad_norm={numbers['max_grad_norm']}"]
    return [*shared, "algo.normalize_advantages=True", f"algo.optimizer.lr={numbers['lr']}"]


def main(name: str, given: str, begun: str) -> None:
    """Train until the window is over, when this process ends."""
    numbers = json.loads(given)
    count(numbers, float(begun))
    sys.argv = ["sheeprl", *words(name, numbers)]
    from sheeprl.cli import run

    run()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""CartPole solved by stable-baselines3 with the settings that its zoo tuned.

python -m benchmarks.rivals.training.tuned_stable_baselines3 TASK trains until an evaluation reaches a return, and
prints environment steps and whether it was reached as a JSON object.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import EvalCallback, StopTrainingOnRewardThreshold
from stable_baselines3.common.env_util import make_vec_env

ENV = "CartPole-v1"


class Tuned(NamedTuple):
    """What the zoo has for an algorithm."""

    kind: type[BaseAlgorithm]
    envs: int
    settings: dict[str, Any]


def falling(first: float) -> Callable[[float], float]:
    """Return a schedule that ends at 0."""
    return lambda remaining: first * remaining


TUNED = {
    "ppo": Tuned(
        PPO,
        8,
        {
            "n_steps": 32,
            "batch_size": 256,
            "gae_lambda": 0.8,
            "gamma": 0.98,
            "n_epochs": 20,
            "ent_coef": 0.0,
            "learning_rate": falling(0.001),
            "clip_range": falling(0.2),
        },
    ),
    "dqn": Tuned(
        DQN,
        1,
        {
            "learning_rate": 2.3e-3,
            "batch_size": 64,
            "buffer_size": 100_000,
            "learning_starts": 1_000,
            "gamma": 0.99,
            "target_update_interval": 10,
            "train_freq": 256,
            "gradient_steps": 128,
            "exploration_fraction": 0.16,
            "exploration_final_eps": 0.04,
            "policy_kwargs": {"net_arch": [256, 256]},
        },
    ),
}


def main(task_json: str) -> None:
    """Train, and print what came out."""
    task = json.loads(task_json)
    seed = task["seed"]
    torch.set_num_threads(1)
    tuned = TUNED[task["algorithm"]]
    watch = EvalCallback(
        make_vec_env(ENV, n_envs=1, seed=seed + 1_000),
        callback_on_new_best=StopTrainingOnRewardThreshold(task["return"]),
        n_eval_episodes=task["episodes"],
        eval_freq=task["every"] // tuned.envs,
        verbose=0,
    )
    envs = make_vec_env(ENV, n_envs=tuned.envs, seed=seed)
    learner = tuned.kind("MlpPolicy", envs, seed=seed, device="cpu", **tuned.settings)
    learner.learn(task["budget"], callback=watch)
    reached = bool(watch.best_mean_reward >= task["return"])
    print(json.dumps({"env_steps": learner.num_timesteps, "reached": reached}))


if __name__ == "__main__":
    main(*sys.argv[1:])

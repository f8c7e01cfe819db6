"""PPO of stable-baselines3 with the numbers of a run: python -m benchmarks.rivals.ppo_stable_baselines3 WHAT NUMBERS.

WHAT: `speed FIRST LAST`, the time between two marks, or `learn BUDGET SEED`, the way to a return. Prints a
JSON object.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback, StopTrainingOnRewardThreshold
from stable_baselines3.common.env_util import make_vec_env

from benchmarks.clock import Clock


def made(numbers: dict[str, Any], seed: int) -> PPO:
    """Return the algorithm; its network has the sizes, activations and initial weights of rlrun's."""
    torch.set_num_threads(1)
    return PPO(
        "MlpPolicy",
        make_vec_env(numbers["env"], n_envs=numbers["num_envs"], seed=seed),
        n_steps=numbers["horizon"],
        batch_size=numbers["batch_size"],
        n_epochs=numbers["epochs"],
        gamma=numbers["discount"],
        gae_lambda=numbers["lambda"],
        clip_range=numbers["clip"],
        ent_coef=numbers["entropy_weight"],
        vf_coef=numbers["value_weight"],
        max_grad_norm=numbers["max_grad_norm"],
        learning_rate=numbers["lr"],
        policy_kwargs={"net_arch": list(numbers["hidden"])},
        seed=seed,
        device="cpu",
    )


class Marks(BaseCallback):
    """Look at the clocks at the first rollouts that begin at or after two environment steps."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def _on_rollout_start(self) -> None:
        if self.num_timesteps >= self.clock.due and len(self.clock.marks) < 2:
            self.clock.note(self.num_timesteps)

    def _on_step(self) -> bool:
        return len(self.clock.marks) < 2


def speed(numbers: dict[str, Any], first: int, last: int) -> dict[str, float]:
    """Return what lies between two environment steps."""
    clock, algorithm = Clock(first=first, last=last), made(numbers, 0)
    clock.watch((algorithm.policy.optimizer,))
    algorithm.learn(10 * last, callback=Marks(clock))
    return clock.report()


def learn(numbers: dict[str, Any], budget: int, seed: int) -> dict[str, Any]:
    """Return seconds and environment steps until an evaluation reached the return."""
    lanes = numbers["num_envs"]
    watch = EvalCallback(
        make_vec_env(numbers["env"], n_envs=1, seed=seed + 1_000),
        callback_on_new_best=StopTrainingOnRewardThreshold(numbers["return"]),
        n_eval_episodes=numbers["episodes"],
        eval_freq=numbers["every"] // lanes,
        verbose=0,
    )
    begun = time.perf_counter()
    algorithm = made(numbers, seed)
    algorithm.learn(budget, callback=watch)
    reached = watch.best_mean_reward >= numbers["return"]
    return {"seconds": time.perf_counter() - begun, "env_steps": algorithm.num_timesteps, "reached": bool(reached)}


def main(numbers: str, what: str, *given: str) -> None:
    """Measure one thing and print what was found."""
    print(json.dumps({"speed": speed, "learn": learn}[what](json.loads(numbers), *map(int, given))))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""stable-baselines3 with its own defaults on a task, or a policy at random.

python -m benchmarks.rivals.training.default_stable_baselines3 JOB trains, and prints the curve of evaluations, the
returns of fresh episodes by the best and by the last policy, and seconds as a JSON object.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

import gymnasium
import torch
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback

LEARNERS: dict[str, type[BaseAlgorithm]] = {"ppo": PPO, "dqn": DQN, "sac": SAC}
PACKAGES = ("stable-baselines3", "torch", "gymnasium")
APART = 1_000_000  # from a run's seed to that of its first evaluated episode, so that none of them is trained on
Policy = Callable[[Any], Any]


class Curve(BaseCallback):
    """Evaluate every so many steps; keep the parameters of the best mean return, of equal ones the newest."""

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__()
        self.job = job
        self.points: list[tuple[int, float]] = []
        self.best: dict[str, torch.Tensor] = {}

    def _on_step(self) -> bool:
        if self.num_timesteps % self.job["every"] == 0:
            values = returns(greedy(self.model), self.job["env"], self.job["episodes"], APART + self.job["seed"])
            mean = sum(values) / len(values)
            if all(mean >= earlier for _, earlier in self.points):
                self.best = {name: value.clone() for name, value in self.model.policy.state_dict().items()}
            self.points.append((self.num_timesteps, mean))
        return True


def greedy(learner: BaseAlgorithm) -> Policy:
    """Return how a learner acts without noise."""
    return lambda observation: learner.predict(observation, deterministic=True)[0]


def returns(policy: Policy, env_id: str, episodes: int, seed: int) -> list[float]:
    """Return those of whole episodes, which begin at seeds of their own."""
    env, values = gymnasium.make(env_id), []
    for episode in range(episodes):
        observation, _ = env.reset(seed=seed + episode)
        total, terminated, truncated = 0.0, False, False
        while not (terminated or truncated):
            observation, reward, terminated, truncated, _ = env.step(policy(observation))
            total += float(reward)
        values.append(total)
    env.close()
    return values


def trained(job: dict[str, Any]) -> dict[str, Any]:
    """Return what a learner came to."""
    begun = time.perf_counter()
    learner = LEARNERS[job["algorithm"]]("MlpPolicy", job["env"], seed=job["seed"], device="cpu")
    curve = Curve(job)
    learner.learn(job["budget"], callback=curve)
    seconds = {"wall_seconds": time.perf_counter() - begun, "processor_seconds": time.process_time()}
    last = returns(greedy(learner), job["env"], job["fresh"], job["fresh_seed"])
    learner.policy.load_state_dict(curve.best)
    best = returns(greedy(learner), job["env"], job["fresh"], job["fresh_seed"])
    return {"curve": curve.points, "env_steps": learner.num_timesteps, "best": best, "last": last, **seconds}


def at_random(job: dict[str, Any]) -> dict[str, Any]:
    """Return what actions by lot come to."""
    space = gymnasium.make(job["env"]).action_space
    space.seed(job["seed"])
    return {"returns": returns(lambda _: space.sample(), job["env"], job["fresh"], job["fresh_seed"])}


def main(job_json: str) -> None:
    """Do the job, and print what came out."""
    torch.set_num_threads(1)
    job = json.loads(job_json)
    outcome = at_random(job) if job["algorithm"] == "random" else trained(job)
    print(json.dumps({**outcome, "versions": {name: metadata.version(name) for name in PACKAGES}}))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""SAC and TD3 of stable-baselines3 with the numbers of a run.

python -m benchmarks.rivals.off_policy_stable_baselines3 ALGORITHM NUMBERS SEED prints the returns of the last policy,
and the seconds that training took, as a JSON object.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import SAC, TD3
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm


def made(algorithm: str, numbers: dict[str, Any], seed: int) -> OffPolicyAlgorithm:
    """Return the algorithm with rlrun's sizes, rates and counts."""
    torch.set_num_threads(1)
    env = gymnasium.make(numbers["env"])
    shared = {
        "learning_rate": numbers["lr"],
        "buffer_size": numbers["length"],
        "learning_starts": numbers["warmup_steps"],
        "batch_size": numbers["batch_size"],
        "tau": numbers["target_rate"],
        "gamma": numbers["discount"],
        "train_freq": 1,
        "gradient_steps": 1,
        "policy_kwargs": {"net_arch": list(numbers["hidden"]), "n_critics": numbers["ensemble"]},
        "seed": seed,
        "device": "cpu",
    }
    if algorithm == "sac":
        return SAC("MlpPolicy", env, ent_coef=f"auto_{numbers['temperature']['initial']}", **shared)
    noise, size = numbers["noise"], env.action_space.shape
    return TD3(
        "MlpPolicy",
        env,
        action_noise=NormalActionNoise(np.zeros(size), np.full(size, noise["deviation"])),
        policy_delay=numbers["policy_every"],
        target_policy_noise=noise["target"],
        target_noise_clip=noise["target_limit"],
        **shared,
    )


def main(algorithm: str, given: str, seed: str) -> None:
    """Train, play, and print what came out."""
    numbers = json.loads(given)
    begun = time.perf_counter()
    learner = made(algorithm, numbers, int(seed))
    learner.learn(numbers["budget"])
    seconds = time.perf_counter() - begun
    env, returns = gymnasium.make(numbers["env"]), []
    for episode in range(numbers["episodes"]):
        observation, _ = env.reset(seed=numbers["seed"] + episode)
        total, ended = 0.0, False
        while not ended:
            action, _ = learner.predict(observation, deterministic=True)
            observation, reward, terminated, truncated, _ = env.step(action)
            total, ended = total + float(reward), terminated or truncated
        returns.append(total)
    print(json.dumps({"returns": returns, "seconds": seconds}))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""SAC and TD3 of stable-baselines3 with the numbers of a run.

python -m benchmarks.rivals.off_policy_stable_baselines3 ALGORITHM NUMBERS SEED prints the returns of the last policy,
and the seconds that training took, as a JSON object.
"""

from __future__ import annotations

import json
import sys
import time

import gymnasium

from benchmarks.rivals.training.stable_baselines3 import made


def main(algorithm: str, numbers_json: str, seed: str) -> None:
    """Train, play, and print what came out."""
    numbers = json.loads(numbers_json)
    begun = time.perf_counter()
    learner = made(algorithm, numbers["env"], numbers, int(seed))
    learner.learn(numbers["budget"])
    seconds = time.perf_counter() - begun
    env, returns = gymnasium.make(numbers["env"]), []
    for episode in range(numbers["episodes"]):
        observation, _ = env.reset(seed=numbers["seed"] + episode)
        total, episode_end = 0.0, False
        while not episode_end:
            action, _ = learner.predict(observation, deterministic=True)
            observation, reward, terminated, truncated, _ = env.step(action)
            total, episode_end = total + float(reward), terminated or truncated
        returns.append(total)
    print(json.dumps({"returns": returns, "seconds": seconds}))


if __name__ == "__main__":
    main(*sys.argv[1:])

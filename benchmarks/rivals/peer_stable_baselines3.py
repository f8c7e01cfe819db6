"""A run of stable-baselines3 to be timed: python -m benchmarks.rivals.peer_stable_baselines3 NAME NUMBERS BEGUN.

NAME: the algorithm; NUMBERS: JSON of rlrun's config, with env and the window, first and last; BEGUN: when this process
was started. Prints a JSON object.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from stable_baselines3 import A2C, DQN
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env

from benchmarks.clock import Clock
from benchmarks.first_step import Start, report
from benchmarks.rivals import off_policy_stable_baselines3, ppo_stable_baselines3

FREQUENCY = 256  # env steps between two phases of learning, as rl-zoo3 has found for DQN on CartPole


def dqn(numbers: dict[str, Any]) -> DQN:
    """Return DQN that learns in phases; a copy of the network every so many env steps, as it counts them."""
    epsilon = numbers["epsilon"]["last"]
    return DQN(
        "MlpPolicy",
        numbers["env"],
        learning_rate=numbers["lr"],
        buffer_size=numbers["length"],
        learning_starts=numbers["warmup_steps"],
        batch_size=numbers["batch_size"],
        tau=numbers["target_rate"],
        gamma=numbers["discount"],
        train_freq=FREQUENCY,
        gradient_steps=int(FREQUENCY * numbers["updates_per_step"]),
        target_update_interval=int(numbers["target_every"] / numbers["updates_per_step"]),
        exploration_initial_eps=epsilon,
        exploration_final_eps=epsilon,
        max_grad_norm=numbers["max_grad_norm"],
        policy_kwargs={"net_arch": list(numbers["hidden"])},
        seed=0,
        device="cpu",
    )


def a2c(numbers: dict[str, Any]) -> A2C:
    """Return A2C with Adam, as rlrun has it."""
    return A2C(
        "MlpPolicy",
        make_vec_env(numbers["env"], n_envs=numbers["num_envs"], seed=0),
        n_steps=numbers["horizon"],
        gamma=numbers["discount"],
        gae_lambda=numbers["lambda"],
        ent_coef=numbers["entropy_weight"],
        vf_coef=numbers["value_weight"],
        max_grad_norm=numbers["max_grad_norm"],
        learning_rate=numbers["lr"],
        normalize_advantage=numbers["normalise"],
        use_rms_prop=False,
        policy_kwargs={"net_arch": list(numbers["hidden"])},
        seed=0,
        device="cpu",
    )


def made(name: str, numbers: dict[str, Any]) -> BaseAlgorithm:
    """Return the algorithm."""
    if name == "ppo":
        return ppo_stable_baselines3.made(numbers, 0)
    if name in ("sac", "td3"):
        return off_policy_stable_baselines3.made(name, numbers, 0)
    return {"dqn": dqn, "a2c": a2c}[name](numbers)


def optimisers(name: str, learner: Any) -> list[torch.optim.Optimizer]:
    """Return whose steps are counted."""
    if name == "sac":
        return [learner.critic.optimizer, learner.actor.optimizer, learner.ent_coef_optimizer]
    if name == "td3":
        return [learner.critic.optimizer, learner.actor.optimizer]
    return [learner.policy.optimizer]


def main(name: str, given: str, begun: str) -> None:
    """Train to the end of the window, and print what was found."""
    torch.set_num_threads(1)
    numbers = json.loads(given)
    start = Start(numbers["env"], float(begun))
    clock, learner = Clock(first=numbers["first"], last=numbers["last"]), made(name, numbers)
    clock.watch(optimisers(name, learner))
    learner.learn(10 * numbers["last"], callback=ppo_stable_baselines3.Marks(clock))
    print(json.dumps(report(clock, start.seconds)))


if __name__ == "__main__":
    main(*sys.argv[1:])

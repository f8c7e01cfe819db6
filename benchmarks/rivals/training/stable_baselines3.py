"""stable-baselines3: its learners, built with the numbers of a run of rlrun."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from stable_baselines3 import A2C, DQN, PPO, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise

from benchmarks.rivals.training.work import Work

PACKAGES = ("stable-baselines3",)
BURST = 256  # env steps from one lot of DQN's updates to the next, as its tuned settings have it
Numbers = dict[str, Any]


def made(algorithm: str, env: str, numbers: Numbers, seed: int) -> BaseAlgorithm:
    """Return a learner with rlrun's sizes, rates and counts."""
    torch.set_num_threads(1)
    shared = {
        "policy": "MlpPolicy",
        "env": make_vec_env(env, n_envs=numbers["num_envs"], seed=seed),
        "learning_rate": numbers["lr"],
        "gamma": numbers["discount"],
        "seed": seed,
        "device": "cpu",
    }
    return MADE[algorithm](numbers, shared)


def on_policy(numbers: Numbers) -> dict[str, Any]:
    """Return what PPO and A2C have in common."""
    return {
        "n_steps": numbers["horizon"],
        "gae_lambda": numbers["lambda"],
        "ent_coef": numbers["entropy_weight"],
        "vf_coef": numbers["value_weight"],
        "max_grad_norm": numbers["max_grad_norm"],
        "normalize_advantage": numbers["normalize"],
        "policy_kwargs": {"net_arch": list(numbers["hidden"])},
    }


def ppo(numbers: Numbers, shared: dict[str, Any]) -> PPO:
    """Return PPO; its network has the sizes, activations and initial weights of rlrun's."""
    own = {"batch_size": numbers["batch_size"], "n_epochs": numbers["epochs"], "clip_range": numbers["clip"]}
    return PPO(**shared, **on_policy(numbers), **own)


def a2c(numbers: Numbers, shared: dict[str, Any]) -> A2C:
    """Return A2C, with Adam."""
    return A2C(**shared, **on_policy(numbers), use_rms_prop=False)


def replay(numbers: Numbers) -> dict[str, Any]:
    """Return what learners from a memory have in common."""
    return {
        "buffer_size": numbers["length"],
        "learning_starts": numbers["warmup_steps"],
        "batch_size": numbers["batch_size"],
        "tau": numbers["tau"],
    }


def critics(numbers: Numbers) -> dict[str, Any]:
    """Return what SAC and TD3 have in common."""
    sizes = {"net_arch": list(numbers["hidden"]), "n_critics": numbers["ensemble"]}
    return {**replay(numbers), "train_freq": 1, "gradient_steps": 1, "policy_kwargs": sizes}


def sac(numbers: Numbers, shared: dict[str, Any]) -> SAC:
    """Return SAC, its temperature learned from the same value on."""
    return SAC(**shared, **critics(numbers), ent_coef=f"auto_{numbers['temperature']['initial']}")


def td3_settings(numbers: Numbers, size: tuple[int, ...]) -> dict[str, Any]:
    """Return what TD3 has beyond the shared arguments; size: of an action."""
    noise = numbers["noise"]
    return {
        **critics(numbers),
        "action_noise": NormalActionNoise(np.zeros(size), np.full(size, noise["deviation"])),
        "policy_delay": numbers["policy_every"],
        "target_policy_noise": noise["target"],
        "target_noise_clip": noise["target_limit"],
    }


def td3(numbers: Numbers, shared: dict[str, Any]) -> TD3:
    """Return TD3."""
    return TD3(**shared, **td3_settings(numbers, shared["env"].action_space.shape))


def dqn(numbers: Numbers, shared: dict[str, Any]) -> DQN:
    """Return DQN, whose updates come in lots; its target network moves after as many updates as rlrun's."""
    updates = round(BURST * numbers["updates_per_step"])
    return DQN(
        **shared,
        **replay(numbers),
        train_freq=BURST,
        gradient_steps=updates,
        target_update_interval=round(numbers["target_every"] / numbers["updates_per_step"]),
        exploration_initial_eps=numbers["epsilon"]["last"],  # the dearest case: hardly a random action
        exploration_final_eps=numbers["epsilon"]["last"],
        max_grad_norm=numbers["max_grad_norm"],
        policy_kwargs={"net_arch": list(numbers["hidden"])},
    )


MADE = {"ppo": ppo, "a2c": a2c, "sac": sac, "td3": td3, "dqn": dqn}


def train(work: Work) -> None:
    """Go on past the window."""
    made(work.algorithm, work.env, work.numbers, seed=0).learn(10 * work.last)

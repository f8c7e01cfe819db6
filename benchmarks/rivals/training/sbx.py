"""SBX, stable-baselines3's learners in JAX, built with the numbers of a run of rlrun.

Nothing counts its updates, which are no steps of an optimizer of torch; `gradient_steps` sets them. Its compilation
ends before the window. TD3 and SAC have the same two critics.
"""

from __future__ import annotations

from typing import Any

from sbx import DQN, PPO, SAC, TD3
from stable_baselines3.common.env_util import make_vec_env

from benchmarks.rivals.training.stable_baselines3 import critics, on_policy, replay, td3_settings
from benchmarks.rivals.training.work import Work

PACKAGES = ("sbx-rl", "jax")


def train(work: Work) -> None:
    """Go on past the window."""
    numbers = work.numbers
    shared: dict[str, Any] = {
        "policy": "MlpPolicy",
        "env": make_vec_env(work.env, n_envs=numbers["num_envs"], seed=0),
        "learning_rate": numbers["lr"],
        "gamma": numbers["discount"],
        "seed": 0,
    }
    MADE[work.algorithm](numbers, shared).learn(10 * work.last)


def ppo(numbers: dict[str, Any], shared: dict[str, Any]) -> Any:
    """Return PPO."""
    own = {"batch_size": numbers["batch_size"], "n_epochs": numbers["epochs"], "clip_range": numbers["clip"]}
    return PPO(**shared, **on_policy(numbers), **own)


def sac(numbers: dict[str, Any], shared: dict[str, Any]) -> Any:
    """Return SAC."""
    return SAC(**shared, **critics(numbers), ent_coef=f"auto_{numbers['temperature']['initial']}")


def td3(numbers: dict[str, Any], shared: dict[str, Any]) -> Any:
    """Return TD3."""
    return TD3(**shared, **td3_settings(numbers, shared["env"].action_space.shape))


def dqn(numbers: dict[str, Any], shared: dict[str, Any]) -> Any:
    """Return DQN, whose updates come after as many steps as rlrun's."""
    steps = numbers["collect_steps"]
    return DQN(
        **shared,
        **replay(numbers),
        train_freq=steps,
        gradient_steps=round(steps * numbers["updates_per_step"]),
        target_update_interval=round(numbers["target_every"] / numbers["updates_per_step"]),
        exploration_initial_eps=numbers["epsilon"]["last"],
        exploration_final_eps=numbers["epsilon"]["last"],
        policy_kwargs={"net_arch": list(numbers["hidden"])},
    )


MADE = {"ppo": ppo, "sac": sac, "td3": td3, "dqn": dqn}

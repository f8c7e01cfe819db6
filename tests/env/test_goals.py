"""Goal environments, and the reward function of any of them as a part."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from rlrun.core.errors import ConfigError, RlrunError
from rlrun.env import make
from rlrun.env.goals import BitFlip, GoalReward, PointReach


def test_bit_flips_and_goal_terminates() -> None:
    env = BitFlip(3)
    env.reset(seed=0)
    env.achieved, env.desired = np.float32([0, 1, 0]), np.float32([1, 1, 0])
    observation, reward, terminated, truncated, info = env.step(2)
    assert observation["achieved_goal"].tolist() == observation["observation"].tolist() == [0, 1, 1]
    assert (reward, terminated, truncated, info["is_success"]) == (-1.0, False, False, False)
    assert env.step(2)[1:4] == (-1.0, False, False)
    assert env.step(0)[1:] == (0.0, True, False, {"is_success": True})  # on the last step; it ended, not cut off
    env = BitFlip(2)
    env.reset(seed=0)
    env.achieved, env.desired = np.float32([0, 0]), np.float32([1, 1])
    assert [env.step(0)[1:4] for _ in range(2)] == [(-1.0, False, False), (-1.0, False, True)]


def test_every_wrong_bit_costs_one() -> None:
    env, returns = BitFlip(), []
    for seed in range(300):
        observation, _ = env.reset(seed=seed)
        wrong = np.flatnonzero(observation["observation"] != observation["desired_goal"])
        rewards = [env.step(bit)[1] for bit in wrong]
        assert rewards == [-1.0] * (len(wrong) - 1) + [0.0]
        returns.append(sum(rewards))
    assert np.mean(returns) == pytest.approx(-4.0, abs=0.3)


def test_goal_point_moves_within_walls() -> None:
    env = PointReach()
    env.reset(seed=0)
    env.achieved, env.desired = np.float32([0.95, 0.0]), np.float32([1.0, -0.1])
    observation, reward, *_ = env.step(np.float32([1.0, -0.5]))
    assert observation["achieved_goal"].tolist() == pytest.approx([1.0, -0.05])
    assert reward == 0.0  # 0.05 away
    assert env.step(np.float32([-0.1, 0.0]))[1] == -1.0


def test_straight_way_has_known_return() -> None:
    env, returns = PointReach(), []
    for seed in range(100):
        observation, truncated = env.reset(seed=seed)[0], False
        returns.append(0.0)
        while not truncated:
            way = observation["desired_goal"] - observation["achieved_goal"]
            observation, reward, terminated, truncated, _ = env.step(np.clip(way / env.stride, -1.0, 1.0))
            returns[-1] += reward
            assert not terminated
    assert np.mean(returns) == pytest.approx(-8.2, abs=0.6)


class Robot(gymnasium.Env[Any, Any]):
    """Written as Gymnasium-Robotics writes them, in doubles; what `compute_reward` takes differs."""

    def __init__(self, kind: str = "batch") -> None:
        self.kind = kind
        goal = Box(-np.inf, np.inf, (2,), np.float64)
        self.observation_space = Dict({"observation": goal, "achieved_goal": goal, "desired_goal": goal})
        self.action_space = Discrete(2)

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        assert achieved_goal.dtype == np.float64
        if self.kind == "info":
            return info["reward"]
        if self.kind == "single":
            return 0.0 if np.linalg.norm(achieved_goal - desired_goal) < 0.5 else -1.0  # of all rows at once
        return -(np.linalg.norm(achieved_goal - desired_goal, axis=-1) >= 0.5).astype(np.float32)

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> bool:
        return False  # whatever comes


ACHIEVED = np.array([[0.0, 0.0], [1.0, 1.0], [2.0, 0.0]], np.float32)
DESIRED = np.array([[0.1, 0.0], [1.0, 2.0], [2.0, 0.25]], np.float32)


def goal_reward(kind: str = "batch", wrappers: Any = ()) -> GoalReward:
    return GoalReward(make(target=f"{__name__}.Robot", kwargs={"kind": kind}, wrappers=wrappers))


@pytest.mark.parametrize(("kind", "at_once"), [("batch", True), ("single", False)])
def test_reward_function_is_batched_if_possible(kind: str, at_once: bool) -> None:
    reward = goal_reward(kind)
    assert reward(ACHIEVED, DESIRED).tolist() == [0.0, -1.0, 0.0]
    assert reward._reward.at_once is at_once
    assert reward(ACHIEVED[:1], DESIRED[1:2]).tolist() == [-1.0]


def test_windows_and_empty_batches_have_rewards() -> None:
    reward = goal_reward()
    window = reward(np.stack([ACHIEVED, DESIRED]), np.stack([DESIRED, DESIRED]))
    assert window.tolist() == [[0.0, -1.0, 0.0], [0.0, 0.0, 0.0]]
    assert window.dtype == np.float32
    assert reward(ACHIEVED[:0], DESIRED[:0]).shape == (0,)


def test_scalar_end_is_computed_by_row() -> None:
    reward = goal_reward()
    assert reward.terminated is not None
    assert reward.terminated(ACHIEVED, DESIRED).tolist() == [False, False, False]


class Doubled(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Pay twice as much, and say so."""

    def compute_reward(self, *goals: Any) -> Any:
        return 2.0 * self.env.get_wrapper_attr("compute_reward")(*goals)


def test_outermost_reward_function_counts() -> None:
    def clock(env: Any) -> Any:
        return gymnasium.wrappers.TimeLimit(env, 5)

    assert goal_reward(wrappers=[clock])(ACHIEVED, DESIRED).tolist() == [0.0, -1.0, 0.0]
    assert goal_reward(wrappers=[Doubled, clock])(ACHIEVED, DESIRED).tolist() == [0.0, -2.0, 0.0]


def test_worker_envs_use_a_copy() -> None:
    env = make(target="rlrun.env.goals.BitFlip", kwargs={"n": 2}, vectorization="async", num_envs=2)
    try:
        assert GoalReward(env)(ACHIEVED[:, :2], ACHIEVED[:, :2]).tolist() == [0.0, 0.0, 0.0]
    finally:
        env.close()


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (
            lambda: make(target=f"{__name__}.Robot", kwargs={"kind": "info"}),
            RlrunError,
            r"'robot': compute_reward failed .* with an empty info: KeyError: 'reward'",
        ),
        (lambda: make("CartPole-v1"), ConfigError, r"'cartpole' has no compute_reward.*achieved_goal and desired_goal"),
        (lambda: make(target="rlrun.env.goals.BitFlip", kwargs={"n": 0}), ConfigError, "whole number above 0, got 0"),
    ],
)
def test_unusable_goal_environment_is_refused(build: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        GoalReward(build())(ACHIEVED, DESIRED)


class Places(gymnasium.Env[Any, Any]):
    """Goals are numbers from 5 on."""

    def __init__(self) -> None:
        place = Discrete(3, start=5)
        self.observation_space = Dict({"observation": place, "achieved_goal": place, "desired_goal": place})
        self.action_space = Discrete(2)

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return np.where((achieved_goal == desired_goal) & (achieved_goal >= 6), 1.0, 0.0)


def test_reward_function_gets_original_goals() -> None:
    reward = GoalReward(make(target=f"{__name__}.Places"))  # stored choices count from 0
    assert reward(np.array([0, 1, 2]), np.array([0, 1, 1])).tolist() == [0.0, 1.0, 0.0]
    assert reward.terminated is None

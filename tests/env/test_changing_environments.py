"""Environments that change what they are given, need what `close` ends, or fail: copies and resumes stay right."""

import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.spaces import Box, Dict, Discrete

import rlrun
from rlrun.core.errors import BuildError, RlrunError
from rlrun.env import make
from rlrun.env.goals import GoalReward, PointReach
from rlrun.env.wrapper_state import FrozenWrappers, LayerStates

HERE = "tests.env.test_changing_environments"
CLOSED: list[int] = []
FAILS: list[bool] = []


class Counter(gymnasium.Env):
    """Counts episodes in a simulator that `close` ends; takes its level from a list that it changes."""

    def __init__(self, levels=(), limit=None):
        self.observation_space, self.action_space = Box(-99.0, 99.0, (1,), np.float32), Discrete(2)
        self.simulator, self.levels = {"episodes": 0}, levels
        if limit is not None and len(CLOSED) == limit:
            raise ValueError("no licence")
        CLOSED.append(0)
        self.number = len(CLOSED) - 1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.simulator["episodes"] += 1
        self.level = (options["starts"] if options else self.levels or [0.0]).pop(0)
        self.steps = 0
        return np.array([self.level], np.float32), {}

    def step(self, action):
        if FAILS:
            sys.exit("no licence")
        self.steps += 1
        return np.array([self.level], np.float32), 1.0, False, self.steps >= 9, {}

    def state_dict(self):
        return {"episodes": self.simulator["episodes"]}

    def load_state_dict(self, state):
        self.simulator["episodes"] = state["episodes"]

    def close(self):
        self.simulator = None
        CLOSED[self.number] += 1


class Generator(Counter):
    """Offers a state that no checkpoint can hold."""

    def state_dict(self):
        return {"draws": np.random.default_rng(0)}


class Goal(Counter):
    """Its reward asks the simulator."""

    def __init__(self):
        super().__init__()
        goal = Box(-1.0, 1.0, (1,), np.float32)
        self.observation_space = Dict(observation=goal, achieved_goal=goal, desired_goal=goal)

    def compute_reward(self, achieved_goal, desired_goal, info):
        return np.full(np.shape(achieved_goal)[:-1], -1.0) * len(self.simulator)


class Levels(wrappers.NormalizeObservation):
    """A Normalize wrapper that pays by a number of its own, which rises with each episode."""

    level = 0

    def reset(self, **options):
        self.level += 1
        return super().reset(**options)

    def state_dict(self):
        return {"level": self.level}

    def load_state_dict(self, state):
        self.level = state["level"]


@pytest.fixture(autouse=True)
def _fresh():
    CLOSED.clear()
    FAILS.clear()


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_states_outlive_their_environments(vectorization):
    """The last checkpoint of a run comes after its environments are closed."""
    env = make(target=f"{HERE}.Counter", num_envs=2, vectorization=vectorization)
    env.record()
    env.reset([3, 4])
    env.step(np.array([0, 1]))
    before = env.state_dict()
    env.close()
    after = env.state_dict()
    assert [episode["now"] for episode in after["episodes"]] == [episode["now"] for episode in before["episodes"]]
    assert all(states == {"own": {"episodes": 1}} for states in after["episodes"][0]["now"].values())


@pytest.mark.parametrize("given", ["options", "kwargs"])
def test_what_an_environment_changes_is_its_own(given):
    starts = [1.0, 2.0, 3.0]
    settings = {"reset_options": {"starts": starts}} if given == "options" else {"kwargs": {"levels": starts}}
    env = make(target=f"{HERE}.Counter", num_envs=2, **settings)
    assert env.reset(0).ravel().tolist() == [1.0, 1.0]
    assert env.copy().reset(0).ravel().tolist() == [1.0]
    again = env.restart(np.array([True, True]), [5, 6]).ravel().tolist()
    assert again == ([1.0, 1.0] if given == "options" else [2.0, 2.0])  # a list of its own is used up by each env
    assert starts == [1.0, 2.0, 3.0]


def test_replay_that_leaves_the_process_is_a_lost_episode():
    env = make(target=f"{HERE}.Counter")
    env.record()
    env.reset([3])
    env.step(np.array([0]))
    state = env.state_dict()
    FAILS.append(True)
    other = make(target=f"{HERE}.Counter")
    other.load_state_dict(state)
    assert "no licence" in other.resume_episodes().lost[0]


def test_state_that_no_checkpoint_holds_is_refused_at_the_first_reset():
    env = make(target=f"{HERE}.Generator")
    env.record()
    with pytest.raises(RlrunError, match=r"state_dict of Generator: a checkpoint keeps .*Generator"):
        env.reset([3])


def test_goals_ask_the_environment_that_is_there_now():
    env = make(target=f"{HERE}.Goal")
    reward = GoalReward(env)
    env.envs[0].close()
    env.envs = [Goal()]
    assert reward(np.zeros((3, 1), np.float32), np.zeros((3, 1), np.float32)).tolist() == [-1.0] * 3


class Asked(PointReach):
    """Answers while it is open, and counts those that are."""

    def __init__(self):
        super().__init__()
        CLOSED.append(0)
        self.number = len(CLOSED) - 1

    def compute_reward(self, achieved_goal, desired_goal, info):
        assert not CLOSED[self.number]
        return super().compute_reward(achieved_goal, desired_goal, info)

    def close(self):
        CLOSED[self.number] += 1


@pytest.mark.parametrize("overrides", [["env.vectorization=async"], ["+with=async"], []], ids=" ".join)
def test_hindsight_asks_open_environments_which_the_end_of_the_run_closes(tmp_path, overrides):
    small = ["algorithm=sac", f"env.target={HERE}.Asked", "+with=hindsight", "preset=null", "logger=[]"]
    small += ["algorithm.hidden=[8]", "algorithm.batch_size=8", "algorithm.warmup_steps=60", "stop.env_steps=64"]
    rlrun.train([*small, "evaluation.episodes=1", *overrides], run_dir=tmp_path / "run")
    assert [1] * len(CLOSED) == CLOSED


def test_environments_are_closed_where_a_later_one_fails():
    with pytest.raises(BuildError, match="no licence"):
        make(target=f"{HERE}.Counter", kwargs={"limit": 2}, num_envs=3)
    assert CLOSED == [1, 1]


def test_frozen_wrappers_get_their_own_state_again():
    env = Levels(gymnasium.make("CartPole-v1"))
    env.reset(seed=1)
    states = LayerStates(env, wrappers_only=True).state_dict()
    other = Levels(gymnasium.make("CartPole-v1"))
    frozen = FrozenWrappers(other, states)
    levels = []
    for seed in range(3):
        frozen.renew()
        other.reset(seed=seed)
        levels.append(other.level)
    assert levels == [2, 2, 2]
    assert other.obs_rms.count == env.obs_rms.count

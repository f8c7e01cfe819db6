"""Rewards of several numbers reach memory, metrics and evaluations."""

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import SyncVectorEnv

from rlrun.collect import Collector, RandomAgent
from rlrun.collect.evaluate import evaluate
from rlrun.collect.statistics import Tally
from rlrun.core.errors import ConfigError, RlrunError, SpaceError
from rlrun.env import make
from rlrun.env.batched import BatchedEnv
from rlrun.env.sync import SyncEnv
from rlrun.env.wrappers import ActionRepeat, Costs
from rlrun.memory import Rollout, Table, WeighRewards

from .probes import collector_for


class Two(gymnasium.Env):
    """Episodes of `length` steps; the rewards of step k are [k, -10 k]."""

    def __init__(self, length=3, shape=(2,), says=(2,)):
        self.observation_space = Box(0.0, 100.0, (1,), np.float32)
        self.action_space = Discrete(2)
        self.length, self.shape = length, shape
        if says is not None:
            self.reward_space = Box(-np.inf, np.inf, says, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.count += 1
        reward = np.array([self.count, -10 * self.count], np.float32) if self.shape == (2,) else np.ones(self.shape)[()]
        return np.full(1, self.count, np.float32), reward, False, self.count == self.length, {"energy": 7.0}


def envs(kind, count=2, **options):
    if kind == "sync":
        return SyncEnv([Two(**options) for _ in range(count)])
    if kind == "batched":
        vector = Vector([lambda: Two(**options)] * count)
        vector.reward_space = Box(-np.inf, np.inf, (2,), np.float32)
        return BatchedEnv(vector)
    return make(target=f"{__name__}.Two", num_envs=count, vectorization="async", kwargs=options)


class Vector(SyncVectorEnv):
    """Gives rewards of two numbers; Gymnasium's own has room for one an env."""

    def step(self, actions):
        self._rewards = np.zeros((self.num_envs, 2))
        return super().step(actions)


@pytest.mark.parametrize("kind", ["sync", "async", "batched"])
def test_rewards_reach_memory_and_metrics(kind):
    env = envs(kind)
    try:
        assert env.spaces.rewards == 2
        columns = {"episode_return": {"tag": True}}
        weigh = [WeighRewards([1.0, 0.5])]
        table = Table(length=100, num_envs=2, spaces=env.spaces, adaptors=weigh, columns=columns)
        collector = collector_for(env, table=table)
        collector.collect(12)
    finally:
        env.close()
    batch = table.sample(16)
    assert set(batch["reward"].tolist()) <= {1.0 - 5.0, 2.0 - 10.0, 3.0 - 15.0}
    assert set(batch["episode_return"].tolist()) == {6.0}
    metrics = collector.metrics
    assert (metrics["episode/return"], metrics["episode/return_0"], metrics["episode/return_1"]) == (6.0, 6.0, -60.0)
    if kind != "batched":  # there a row after an end is none
        assert collector.tally.reward_sum.tolist() == [24.0, -240.0]
    assert collector.tally.reward_steps == collector.steps


def test_tally_restores_every_sum():
    tally, restored = Tally(2, 2, window=4), Tally(2, 2, window=4)
    for count in (1, 2, 3):
        tally.add(np.full((2, 2), count, np.float32), None)
    tally.end(np.array([0]))
    restored.load_state_dict(tally.state_dict())
    means = {"episode/return": 6.0, "episode/length": 3.0, "episode/return_0": 6.0, "episode/return_1": 6.0}
    assert restored.metrics == tally.metrics
    assert means.items() <= tally.metrics.items()
    assert (restored.total.tolist(), restored.length.tolist()) == ([[0.0, 0.0], [6.0, 6.0]], [0, 3])
    assert (restored.reward_sum.tolist(), restored.reward_steps) == ([12.0, 12.0], 6)
    restored.add(np.ones((2, 2), np.float32), np.array([True, False]))  # the second row is no transition
    assert restored.total.tolist() == [[1.0, 1.0], [6.0, 6.0]]
    assert (restored.reward_sum.tolist(), restored.reward_steps) == ([13.0, 13.0], 7)


def test_evaluation_sums_every_reward():
    env = envs("sync", length=4)
    evaluation = evaluate(env, RandomAgent(env.spaces.action, seed=1), episodes=3, seed=0)
    assert evaluation.returns == [10.0] * 3
    assert evaluation.totals == [[10.0, -100.0]] * 3


def test_rollout_holds_every_reward():
    env = envs("sync")
    rollout = Rollout(spaces=env.spaces, num_envs=2)
    rollout.reserve(4)
    collector_for(env, table=rollout).collect(8)
    assert rollout._arrays["reward"].shape == (4, 2, 2)
    assert rollout._arrays["reward"][1].tolist() == [[2.0, -20.0]] * 2


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_open_episodes_resume_with_rewards(kind):
    saved, outcomes = [], []
    for resumed in (False, True):
        env = envs(kind, length=9)
        table = Table(length=100, num_envs=2, spaces=env.spaces, adaptors=[WeighRewards([1.0, 1.0])])
        collector = Collector(env, RandomAgent(env.spaces.action, seed=1), table, seed=3)
        if resumed:
            env.load_state_dict(saved[0])
            collector.load_state_dict(saved[1])
        collector.begin_training()
        collector.collect(8)
        saved = saved or [env.state_dict(), collector.state_dict()]
        outcomes.append((collector.approximate, collector.tally.total.tolist()))
        env.close()
    assert outcomes == [(None, [[10.0, -100.0]] * 2), (None, [[36.0, -360.0]] * 2)]


@pytest.mark.parametrize(
    ("shape", "says", "message"),
    [
        ((2,), None, r"reward of shape \[2\].*one number"),
        ((), (2,), r"shape \[\].*\[2\]"),
        ((3,), (2,), r"\[3\].*\[2\]"),
    ],
)
def test_wrong_reward_shape_is_refused(shape, says, message):
    env = SyncEnv([Two(shape=shape, says=says)])
    env.reset(0)
    with pytest.raises(RlrunError, match=message):
        env.step(np.zeros(1, np.int64))


def test_reward_space_has_one_dimension():
    with pytest.raises(SpaceError, match="one dimension"):
        SyncEnv([Two(says=(2, 2))])
    assert SyncEnv([Two(shape=(), says=())]).spaces.rewards == 0


def test_costs_become_rewards():
    env = Costs(Two(shape=(), says=None), names=["energy"])
    env.reset()
    assert env.step(0)[1].tolist() == [1.0, -7.0]
    assert SyncEnv([env]).spaces.rewards == 2
    assert SyncEnv([ActionRepeat(env, 2)]).spaces.rewards == 2
    repeated = ActionRepeat(Two(), 3)
    repeated.reset()
    assert repeated.step(0)[1].tolist() == [6.0, -60.0]


def test_missing_cost_is_named():
    env = Costs(Two(shape=(), says=None))
    env.reset()
    with pytest.raises(RlrunError, match="no 'cost'; it has energy"):
        env.step(0)
    with pytest.raises(ConfigError, match=r"Costs\.names"):
        Costs(Two(), names=[])

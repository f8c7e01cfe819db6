"""What is stored is what happened."""

import random

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from rlrun.core.errors import DataError
from rlrun.env.sync import SyncEnv

from .probes import LENGTHS, collector_for, labelled, seeded

MODES = [None, *AutoresetMode]


class Counting:
    """Acts 0, 1, 2, … and adds the place to its response."""

    outputs = ("action", "place", "unwanted")

    def __init__(self):
        self.calls = 0

    def __call__(self, observation, state=None, *, explore=True):
        self.calls += 1
        action = np.full(len(observation), self.calls % 5)
        return {"action": action, "place": observation[:, 2] * 10, "unwanted": action}


def collector_of(mode=None, count=1, agent=None, columns=None, begin=True, **options):
    return collector_for(labelled(mode, count, **options), agent, columns=columns, begin=begin, warm_up_seed=7)


def stored(collector):
    """Return the distinct stored rows, as lists of env, episode, step, successor …, in order."""
    batch = collector.table.sample(3000)
    names = ("observation", "next_observation", "action", "reward", "terminated", "truncated")
    values = [batch[name]["label"] if isinstance(batch[name], dict) else batch[name] for name in names]
    columns = [value.numpy().reshape(3000, -1).astype(np.float64) for value in values]
    return np.unique(np.concatenate(columns, -1), axis=0).round(4).tolist()


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(("mode", "count"), [*((mode, count) for mode in MODES for count in (1, 3)), ("workers", 1)])
def test_every_transition_is_stored_once(mode, count, nested):
    collector = collector_of(mode, count, nested=nested)
    collector.collect(30 * count)
    rows = stored(collector)
    collector.env.close()
    for env_index, episode, step, *successor, action, reward, terminated, truncated in rows:
        assert successor == [env_index, episode, step + 1]
        assert reward == pytest.approx(step + 1 + action / 10)
        over = step + 1 == LENGTHS[int(episode) % 4]
        assert (terminated, truncated) == (over and episode % 2 == 0, over and episode % 2 == 1)
    whole = [(episode, step) for episode in range(30) for step in range(LENGTHS[episode % 4])]
    for env_index in range(count):
        pairs = [(episode, step) for owner, episode, step, *_ in rows if owner == env_index]
        assert pairs == whole[: len(pairs)]
        assert len(pairs) >= (30 - 11 if mode is AutoresetMode.NEXT_STEP else 30 - 1)
    assert len(collector.table) == len(rows)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_episodes_are_measured_as_they_ended(mode):
    collector = collector_of(mode, agent=Still())
    collector.collect(6 if mode is not AutoresetMode.NEXT_STEP else 8)  # episodes of 3, 1 and 2 steps, two resets
    assert collector.metrics["episode/count"] == 3
    assert collector.metrics["episode/return"] == pytest.approx((6 + 1 + 3) / 3)
    assert collector.metrics["episode/length"] == 2.0
    assert collector.metrics["episode/score"] == pytest.approx((3 + 11 + 22) / 3)  # at the ends, not on average
    assert collector._spent["env"] > 0.0
    assert collector._spent["act"] > 0.0


class Both(gymnasium.Env):
    """Terminates and is truncated at once in odd episodes; even ones are only truncated."""

    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32), gymnasium.spaces.Discrete(5)
    episode = -1

    def reset(self, *, seed=None, options=None):
        self.episode += 1
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return np.zeros(3, np.float32), 0.0, self.episode % 2 == 1, True, {}


def test_terminated_episodes_are_not_interrupted():
    collector = collector_for(SyncEnv([Both()]), columns={"interrupted": {"tag": True}})
    collector.collect(4)
    batch = collector.table.sample(50)
    assert torch.equal(batch["interrupted"] == 1, ~batch["terminated"])
    assert batch["terminated"].any()
    assert not batch["terminated"].all()


class Still(Counting):
    def __call__(self, observation, state=None, *, explore=True):
        return {"action": np.zeros(len(observation), np.int64), "place": observation[:, 2], "unwanted": 0}


def test_means_are_of_the_newest_episodes():
    collector = collector_for(labelled(None, 1), Still(), window=2)
    assert "episode/return" not in collector.metrics
    collector.collect(6)
    assert collector.metrics["episode/return"] == 2.0  # of 1 and 3


def test_columns_of_the_agent_are_stored():
    collector = collector_of(count=3, agent=Counting(), columns={"place": {}})
    collector.collect(60)
    batch = collector.table.sample(200)
    assert batch["place"].tolist() == (batch["observation"][:, 2] * 10).tolist()
    assert "unwanted" not in batch


def test_steps_are_whole_rounds():
    collector = collector_of(count=3)
    assert [collector.collect(steps) for steps in (1, 3, 4)] == [3, 3, 6]
    assert collector.begin_batch() == {"step": 12}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e39])
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_bad_reward_is_never_stored(value):
    collector = collector_of(count=2, agent=Still(), poison={("reward", 1, 1): value})
    collector.collect(6)
    before = collector.table.index.written.copy()
    largest = "" if np.isnan(value) else r"; float32 holds numbers up to 3\.4e\+38"
    with pytest.raises(DataError, match=rf"gave reward = {np.float32(value)} .* 0 after 6 environment steps{largest}$"):
        collector.collect(2)
    assert collector.table.index.written.tolist() == before.tolist()
    assert collector.steps == 6


class Diverged(Still):
    """Acts by NaN in environment 1."""

    def __call__(self, observation, state=None, *, explore=True):
        return {"action": np.array([[0.0], [np.nan]], np.float32)}


@pytest.mark.parametrize("raising", [False, True])
def test_diverged_policy_is_named(raising, monkeypatch):
    env = seeded(2)
    if raising:
        monkeypatch.setattr(env.envs[1], "step", lambda action: 1 / 0)
    collector = collector_for(env, Diverged())
    with pytest.raises(DataError, match=r"policy \(Diverged\) diverged: it gave action\[0\] = nan in env 1 after 0 "):
        collector.collect(2)


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize(("place", "value", "steps"), [((0, 2), np.nan, 2), ((1, 0), np.inf, 6)], ids=["step", "reset"])
def test_bad_observation_is_never_stored(place, value, steps, mode):
    collector = collector_of(mode, count=2, agent=Still(), poison={("observation", *place): value})
    collector.collect(2)
    before = collector.table.index.written.copy()
    with pytest.raises(DataError, match=rf"gave observation\[2\] = {value} in env 0 after {steps} environment steps"):
        collector.collect(8)
    assert place == (1, 0) or collector.table.index.written.tolist() == before.tolist()


def test_bad_first_observation_is_refused():
    with pytest.raises(DataError, match=r"env 0 after 0 environment steps"):
        collector_of(poison={("observation", 0, 0): np.nan})


def random_actions(seed):
    random.seed(seed), np.random.seed(seed)
    collector = collector_of(agent=Counting())
    collector.collect(20, random=True)
    assert collector.agent.calls == 0
    return [row[6] for row in stored(collector)]


def test_warm_up_is_random_and_reproducible():
    assert random_actions(0) == random_actions(1)
    assert set(random_actions(0)) == {0, 1, 2, 3, 4}


def resumed(mode, count, steps):
    """Collect, and resume in another collector from the saved states."""
    original, restored = (collector_of(mode, count, agent=Still(), begin=begin) for begin in (True, False))
    original.collect(steps)
    restored.load_state_dict(original.state_dict())
    restored.table.load_state_dict(original.table.state_dict())
    restored.begin_training()
    return original, restored


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_resume_ends_open_episodes(mode, count):
    _, collector = resumed(mode, count, 8 * count)  # episode 3 has made two of its four steps
    collector.collect(7 * count)
    window = collector.table.sample(3000, 2)
    assert torch.equal(window["observation"][:, 0, :2], window["observation"][:, 1, :2])  # env and episode
    assert torch.equal(window["observation"][:, 1, :2], window["next_observation"][:, 1, :2])
    last = [row for row in stored(collector) if row[1:3] == [3, 1]]
    assert [row[3:6] + row[-2:] for row in last] == [[env_index, 3, 2, 0, 0] for env_index in range(count)]


def test_open_episode_is_not_counted():
    _, collector = resumed(None, 1, 5)  # episodes of 3 and 1, and one step of the third
    collector.collect(4)  # episodes of 3 and 1 again
    assert collector.metrics["episode/count"] == 4
    assert collector.metrics["episode/length"] == 2.0


def test_resume_without_rows_ends_nothing():
    original, restored = collector_of(count=2), collector_of(count=2, begin=False)
    original.collect(10)
    restored.load_state_dict(original.state_dict())
    restored.begin_training()
    restored.collect(4)
    assert len(restored.table) == 2  # one of each env, and one that waits for what follows it
    assert restored.steps == original.steps + 4

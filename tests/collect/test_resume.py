"""A collector stops between two steps, and resumes exactly."""

import logging
import os
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import wrappers

from rlrun import checkpointing as storage
from rlrun.collect import ByIdCollector, RandomAgent, evaluate
from rlrun.collect.evaluate import stage
from rlrun.core.seeds import episode_seed
from rlrun.env import EnvById, make
from rlrun.env.by_id import Crowd
from rlrun.env.sync import SyncEnv
from rlrun.env.vector import describe_lost_envs
from rlrun.memory import ReturnNormalize, Rollout, RolloutLoader, Table
from rlrun.nn import ReturnNormalizer
from rlrun.training.callback import Stop

from .probes import Labelled, collector_for


def collector_of(env):
    return collector_for(env, begin=False, seed=11, warm_up_seed=7)


def parts(collector):
    return {"collector": collector, "env": collector.env, "memory": collector.table, "agent": collector.agent}


def saved(collector, folder):
    """Return the states of a collector's parts as a checkpoint holds them."""
    storage.write(
        folder / "checkpoint", storage.snapshot({name: part.state_dict() for name, part in parts(collector).items()})
    )
    return storage.load(folder / "checkpoint")


def resumed(build, states):
    collector = collector_of(build())
    for name, part in parts(collector).items():
        part.load_state_dict(states[name])
    collector.begin_training()
    return collector


class Unsteady(Labelled):
    """Its rewards depend on a variable of the process."""

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, reward + float(os.environ.get("RLRUN_TEST_SHIFT", "0")), *rest


class Fragile(Labelled):
    def step(self, action):
        if os.environ.get("RLRUN_TEST_SHIFT") and self.count == 1:
            raise ValueError("out of range")
        return super().step(action)


def mixed(kind):
    return SyncEnv([Labelled(0), kind(1), Labelled(2)])


@pytest.mark.parametrize(
    ("kind", "reason"),
    [(Unsteady, "played again, its episode had other observations or rewards"), (Fragile, "ValueError: out of range")],
)
def test_only_lost_envs_are_broken_off(kind, reason, tmp_path, monkeypatch, caplog):
    original = collector_of(mixed(kind))
    original.begin_training()
    original.collect(8 * 3)  # of the episode of four steps, two were made
    states = saved(original, tmp_path)
    monkeypatch.setenv("RLRUN_TEST_SHIFT", "1")
    with caplog.at_level(logging.WARNING, "rlrun"):
        restored = resumed(partial(mixed, kind), states)
    assert restored.approximate == f"env 1: {reason}"
    assert [entry.getMessage() for entry in caplog.records] == [
        f"resume: approximate: env 1: {reason}; new episodes begin there"
    ]
    assert restored.tally.length.tolist() == [2, 0, 2]
    monkeypatch.delenv("RLRUN_TEST_SHIFT")
    episodes = [3, 4, 3]  # of each env; env 1 has begun another one
    assert [env.seed for env in restored.env.envs] == [episode_seed(11, *at) for at in enumerate(episodes)]
    assert restored.observation[:, 2].tolist() == [2, 0, 2]
    for collector in (original, restored):
        collector.collect(7 * 3)
    window = restored.table.sample(3000, 2)
    assert (window["observation"][:, 0, :2] == window["observation"][:, 1, :2]).all()  # env and episode
    assert rows_of(original, (0, 2)) == rows_of(restored, (0, 2))


@pytest.mark.parametrize("kind", ["rollout", "rollout under way", "table", "table without its rows", "fork"])
def test_broken_off_episode_resets_running_return(kind, tmp_path, monkeypatch):
    def build():
        env = mixed(Unsteady)
        adaptor = ReturnNormalize(ReturnNormalizer(discount=0.5, num_envs=3))
        if kind.startswith("rollout"):
            table = Rollout(spaces=env.spaces, num_envs=3)
            RolloutLoader(table=table, collector=None, horizon=9, adaptors=[adaptor])
        else:
            table = Table(spaces=env.spaces, length=600, num_envs=3, adaptors=[adaptor])
        return collector_for(env, table=table, seed=11, begin=False), adaptor

    (first, left_adaptor), (second, adaptor) = build(), build()
    first.begin_training()
    first.collect(5 * 3)  # of the third episode, of two steps, one was made
    left_adaptor.normalizer.running = np.array([3.0, 5.0, 7.0])
    monkeypatch.setenv("RLRUN_TEST_SHIFT", "1")
    adaptor.normalizer.load_state_dict(left_adaptor.normalizer.state_dict())
    if kind == "rollout":
        first.table.clear()
    if kind != "fork":
        with_rows = [(second.table, first.table)] if kind != "table without its rows" else []
        for mine, theirs in [(second, first), (second.env, first.env), *with_rows]:
            mine.load_state_dict(theirs.state_dict())
    second.begin_training()
    if kind == "rollout under way":  # whose rows are learned from yet: the one before the resume is truncated
        assert second.table.steps(second.observation)[0]["truncated"][4].tolist() == [False, True, False]
        assert adaptor.normalizer.running.tolist() == [3.0, 5.0, 7.0]
    else:
        assert adaptor.normalizer.running.tolist() == ([0.0] * 3 if kind == "fork" else [3.0, 0.0, 7.0])


def rows_of(collector, envs):
    """Return the distinct stored rows of some envs."""
    batch = collector.table.sample(4000)
    columns = [batch[name].numpy().reshape(4000, -1).astype(np.float64) for name in ("observation", "action", "reward")]
    rows = np.unique(np.concatenate(columns, -1), axis=0)
    return rows[np.isin(rows[:, 0], envs)].tolist()


def test_unrecorded_envs_are_all_broken_off(tmp_path):
    build = partial(make, "CartPole-v1", num_envs=2, vectorization="native")
    original = collector_of(build())
    original.begin_training()
    assert original.approximate is None
    original.collect(10)
    restored = resumed(build, saved(original, tmp_path))
    assert restored.approximate == "every env: cartpole (native) has no record of its open episodes"


def test_lost_envs_are_grouped_by_reason():
    lost = {4: "b", 1: "a", 0: "b"}
    assert describe_lost_envs(lost, 5) == "envs 0, 4: b; env 1: a"
    assert describe_lost_envs(dict.fromkeys(range(5), "a"), 5) == "every env: a"


class Interrupt:
    requested: str | None = None

    def check(self):
        if self.requested is not None:
            raise Stop(self.requested)

    meet = check


def by_id(**options):
    env = EnvById(Crowd(**options))
    agent = RandomAgent(env.spaces.action, seed=0)
    return ByIdCollector(env, agent, Table(length=500, spaces=env.spaces), seed=4)


def test_signal_stops_agents_between_rounds():
    collector, interrupt = by_id(arrivals=1.0), Interrupt()
    collector.begin_training({"interrupt": interrupt})
    collector.collect(20)
    interrupt.requested = "SIGTERM"
    with pytest.raises(Stop):
        collector.collect(1)
    assert 20 <= collector.steps < 25


def test_agents_resume_with_new_episodes():
    first, second, other = by_id(), by_id(), by_id()
    first.begin_training()
    assert first.approximate is None
    first.collect(30)
    second.load_state_dict(first.state_dict())
    second.begin_training()
    assert second.approximate.startswith("agents by id:")
    other.begin_training()
    assert second.env.world.rng.bit_generator.state != other.env.world.rng.bit_generator.state


def test_evaluations_are_independent():
    class Harder(gymnasium.Wrapper):
        level = 0

        def state_dict(self):
            return {"level": self.level}

        def load_state_dict(self, state):
            self.level = state["level"]

        def reset(self, **options):
            self.level += 1
            return self.env.reset(**options)

        def step(self, action):
            observation, reward, *rest = self.env.step(action)
            return observation, reward + self.level, *rest

    env = make("CartPole-v1", num_envs=1, wrappers=[wrappers.NormalizeObservation, Harder])
    agent = RandomAgent(env.spaces.action, seed=0)
    envs, drawn, returns = stage(env, 3), agent.state_dict(), []
    for staged in (envs, envs, stage(env, 3)):
        agent.load_state_dict(drawn)
        returns.append(evaluate(staged, agent, episodes=7, seed=5).returns)
    assert returns[0] == returns[1] == returns[2]
    assert "episodes" not in envs.state_dict()

"""Lanes step, end and restart alike, whoever resets them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import timeit

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from tests.pace import within

from rlrun.core.errors import RlrunError
from rlrun.env import make
from rlrun.env.batched import BatchedEnv
from rlrun.env.sync import SyncEnv

LENGTHS = (3, 1, 2, 4)


class Labelled(gymnasium.Env):
    """Each observation says where it comes from: [episode, step]; reward = step; ends alternate."""

    def __init__(self, nested=False, offset=0):
        box = Box(-1.0, 1e6, (2,), np.float64)
        self.observation_space = Dict({"label": box}) if nested else box
        self.action_space = Discrete(2)
        self.nested, self.episode = nested, -1 + offset
        self.seeds, self.options = [], []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.options.append(options)
        self.episode, self.count = self.episode + 1, 0
        return self.label(), {}

    def step(self, action):
        self.count += 1
        over = self.count == LENGTHS[self.episode % 4]
        even = self.episode % 2 == 0
        return self.label(), float(self.count), over and even, over and not even, {"episode": self.episode}

    def label(self):
        label = np.array([self.episode, self.count], np.float64)
        return {"label": label} if self.nested else label


def factories(nested, count=2):
    return [lambda offset=env_index: Labelled(nested, offset) for env_index in range(count)]


def envs_of(kind, nested=False):
    if kind == "loop":
        return SyncEnv([factory() for factory in factories(nested)])
    engine, mode = kind
    return BatchedEnv(engine(factories(nested), autoreset_mode=mode))


KINDS = ["loop", *((engine, mode) for engine in (SyncVectorEnv, AsyncVectorEnv) for mode in AutoresetMode)]


def label(tree):
    return (tree["label"] if isinstance(tree, dict) else tree).copy()


def walk(env, steps):
    """Collect as a collector does: what was seen, the step, and what is acted on next, each step."""
    seen, rows = label(env.reset(0)), []
    for _ in range(steps):
        step = env.step(np.zeros(env.num_envs, np.int64))
        valid = np.ones(env.num_envs, bool) if step.valid is None else step.valid
        successor, episode_end = label(step.observation), step.terminated | step.truncated
        flags = (step.reward.copy(), step.terminated.copy(), step.truncated.copy())
        after = label(env.restart(episode_end))
        rows += [
            (env_index, seen[env_index], successor[env_index], *(flag[env_index] for flag in flags), after[env_index])
            for env_index in np.flatnonzero(valid)
        ]
        seen = after
    env.close()
    return rows


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_no_transition_crosses_an_episode(kind, nested):
    rows = walk(envs_of(kind, nested), steps=30)
    assert len(rows) > 30
    for _, seen, successor, reward, *_ in rows:
        assert successor.tolist() == [seen[0], seen[1] + 1]
        assert reward == successor[1]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_ends_are_told_apart_in_every_mode(kind):
    for _, seen, successor, _, terminated, truncated, _ in walk(envs_of(kind), steps=30):
        over = successor[1] == LENGTHS[int(seen[0]) % 4]
        assert terminated == (over and seen[0] % 2 == 0)
        assert truncated == (over and seen[0] % 2 == 1)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_no_transition_is_lost(kind):
    rows = [row for row in walk(envs_of(kind), steps=30) if row[0] == 0]
    labels = [(int(row[1][0]), int(row[1][1])) for row in rows]
    assert labels == [(e, s) for e in range(30) for s in range(LENGTHS[e % 4])][: len(labels)]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind == "loop" or kind[1] is not AutoresetMode.NEXT_STEP])
def test_ended_lane_acts_on_its_new_episode(kind):
    for _, seen, _, _, terminated, truncated, after in walk(envs_of(kind), steps=12):
        if terminated or truncated:
            assert after.tolist() == [seen[0] + 1, 0]


def test_acted_on_observation_survives_step_and_restart():
    env = envs_of("loop")
    seen = env.reset(0)
    for _ in range(20):
        before = seen.copy()
        step = env.step(np.zeros(2, np.int64))
        successor = step.observation.copy()
        after = env.restart(step.terminated | step.truncated)
        np.testing.assert_array_equal(seen, before)
        np.testing.assert_array_equal(step.observation, successor)
        seen = after


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_chosen_lanes_get_their_seeds(vectorization):
    env = make("CartPole-v1", num_envs=2, vectorization=vectorization)
    before = env.reset(5).copy()
    after = env.reset_envs(np.array([False, True]), [77]).copy()
    observation = gymnasium.make("CartPole-v1").reset(seed=77)[0]
    np.testing.assert_array_equal(after, [before[0], observation])
    env.close()


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_lane_i_gets_seed_plus_i(vectorization):
    env = make("CartPole-v1", num_envs=3, vectorization=vectorization)
    alone = [gymnasium.make("CartPole-v1").reset(seed=10 + env_index)[0] for env_index in range(3)]
    np.testing.assert_array_equal(env.reset(10), alone)
    np.testing.assert_array_equal(env.reset([12, 11, 10]), alone[::-1])
    env.close()


@pytest.mark.parametrize("id", ["CartPole-v1", "MountainCarContinuous-v0", "FrozenLake-v1"])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_loop_equals_gymnasium_bit_for_bit(id, num_envs):
    ours = make(id, num_envs=num_envs)
    theirs = SyncVectorEnv([lambda: gymnasium.make(id)] * num_envs, autoreset_mode=AutoresetMode.DISABLED)
    theirs.action_space.seed(0)
    np.testing.assert_array_equal(ours.reset(3), theirs.reset(seed=3)[0])
    for _ in range(300):
        action = theirs.action_space.sample()  # in [-1, 1] or counted from 0: a policy action as it stands
        step, (observation, reward, terminated, truncated, _) = ours.step(action), theirs.step(action)
        episode_end = terminated | truncated
        for value, expected in zip(step, (observation, reward.astype(np.float32), terminated, truncated), strict=False):
            np.testing.assert_array_equal(value, expected)
        after = ours.restart(episode_end)
        if episode_end.any():
            np.testing.assert_array_equal(after, theirs.reset(options={"reset_mask": episode_end})[0])


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_info_is_found_by_lane(kind):
    env = envs_of(kind)
    env.reset(0)
    info = env.step(np.zeros(2, np.int64)).info
    assert [int(info[env_index]["episode"]) for env_index in (0, 1)] == [0, 1]
    assert sorted(info) == [0, 1]
    env.close()


def test_reset_options_reach_every_reset():
    single_env = Labelled()
    env = SyncEnv([single_env], reset_options={"level": 2})
    env.reset(4)
    env.restart(np.array([True]))
    assert single_env.options == [{"level": 2}, {"level": 2}]
    assert single_env.seeds == [4, None]


def test_native_lanes_mark_their_reset_rows():
    env = make("CartPole-v1", num_envs=4, vectorization="native")
    env.reset(0)
    episode_end, ends = np.zeros(4, bool), 0
    for _ in range(200):
        step = env.step(np.ones(4, np.int64))
        np.testing.assert_array_equal(np.ones(4, bool) if step.valid is None else step.valid, ~episode_end)
        assert (np.abs(env.restart(step.terminated | step.truncated)[episode_end]) <= 0.05).all()
        episode_end = step.terminated | step.truncated
        ends += episode_end.sum()
    assert ends > 20


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_self_resetting_lanes_refuse_to_be_cut_short(mode):
    env = envs_of((SyncVectorEnv, mode))
    env.reset(0)
    env.step(np.zeros(2, np.int64))
    with pytest.raises(RlrunError, match="cannot be cut short"):
        env.restart(np.array([True, True]))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_failing_worker_is_one_line():
    class Broken(Labelled):
        def step(self, action):
            raise ZeroDivisionError("no way\nto go on")

    env = BatchedEnv(AsyncVectorEnv([Broken, Broken]), place="env 'broken'")
    env.reset(0)
    with pytest.raises(RlrunError) as caught:
        env.step(np.zeros(2, np.int64))
    assert str(caught.value) == "env 'broken': step failed: a worker failed: ZeroDivisionError: no way to go on"
    env.close()


def test_killed_worker_is_one_line():
    env = make("CartPole-v1", num_envs=2, vectorization="async")
    env.reset(0)
    env.vector.processes[0].kill()
    env.vector.processes[0].join()
    with pytest.raises(
        RlrunError, match=r"^env.id 'CartPole-v1': step failed: the process of env 0 is gone: it was killed by SIGKILL$"
    ):
        env.step(np.zeros(2, np.int64))
    assert not any(process.is_alive() for process in env.vector.processes)


def test_workers_leave_interrupts_to_their_parent():
    env = make("CartPole-v1", num_envs=2, vectorization="async")
    env.reset(0)
    os.kill(env.vector.processes[0].pid, signal.SIGINT)
    assert env.step(np.zeros(2, np.int64)).reward.tolist() == [1.0, 1.0]
    env.close()


def test_a_signal_to_the_whole_group_is_for_the_parent():
    env = make("CartPole-v1", num_envs=2, vectorization="async")
    env.reset(0)  # the workers are up
    assert os.getpgrp() not in [os.getpgid(process.pid) for process in env.vector.processes]
    env.close()


ORPHANS = """
import sys
import numpy as np
from rlrun.env import make

env = make("CartPole-v1", num_envs=3, vectorization="async")
env.record()
env.reset(0)
print("ready", flush=True)
while True:
    env.restart(np.array([False, True, False]))
    env.step(np.zeros(3, np.int64))
"""


def test_workers_of_a_killed_process_leave_in_silence():
    command = [sys.executable, "-W", "ignore", "-c", ORPHANS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        process.kill()
        out, err = process.communicate(timeout=30)  # ends when nobody holds these pipes any more
    assert (out, err) == (b"", b"")


def test_workers_leave_when_closed():
    env = make("CartPole-v1", num_envs=2, vectorization="async")
    env.reset(0)
    env.close()
    env.close()
    assert not any(process.is_alive() for process in env.vector.processes)


@pytest.mark.speed
@pytest.mark.parametrize("id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1"])
def test_writing_down_an_environment_costs_little(id):
    env = make(id)
    env.record()
    env.reset(0)
    capture = env._recorders[0].reset_state.capture
    assert within(lambda: min(timeit.repeat(capture, timer=time.process_time, number=100, repeat=20)) / 100, 40e-6)


@pytest.mark.speed
@pytest.mark.parametrize("recorded", [False, True])
def test_single_lane_costs_little(recorded):
    class Idle(Labelled):
        def step(self, action):
            return last, 0.0, False, False, {}

    env, last, action, episode_end = SyncEnv([Idle()]), np.zeros(2), np.zeros(1, np.int64), np.zeros(1, bool)
    if recorded:
        env.record()
    env.reset(0)

    def once():
        env.step(action)
        env.restart(episode_end)

    assert within(lambda: min(timeit.repeat(once, timer=time.process_time, number=5000, repeat=5)) / 5000, 5e-6)

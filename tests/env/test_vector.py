"""Envs step, end and restart alike in every kind of vector environment."""

import os
import signal
import subprocess
import sys
import time
import timeit
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tests.pace import within

from rlrun.core.errors import RlrunError
from rlrun.env import make
from rlrun.env.batched import BatchedEnv
from rlrun.env.sync import SyncEnv
from rlrun.env.workers import WorkerEnv

LENGTHS = (3, 1, 2, 4)


class Labelled(gymnasium.Env):
    """observation: [episode, step]; the seed is the number of the first episode. reward = step; ends alternate."""

    def __init__(self, nested=False):
        box = Box(-1.0, 1e6, (2,), np.float64)
        self.observation_space = Dict({"label": box}) if nested else box
        self.action_space = Discrete(2)
        self.nested, self.seeds, self.options = nested, [], []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.options.append(options)
        self.episode, self.count = self.episode + 1 if seed is None else seed, 0
        return self.label(), {}

    def step(self, action):
        self.count += 1
        over = self.count == LENGTHS[self.episode % 4]
        even = self.episode % 2 == 0
        return self.label(), float(self.count), over and even, over and not even, {"episode": self.episode}

    def label(self):
        label = np.array([self.episode, self.count], np.float64)
        return {"label": label} if self.nested else label


def envs_of(kind, nested=False):
    build = partial(Labelled, nested)
    if kind == "loop":
        return SyncEnv([build(), build()])
    if kind == "workers":
        return WorkerEnv(build, 2)
    return BatchedEnv(SyncVectorEnv([build, build], autoreset_mode=kind))


KINDS = ["loop", "workers", *AutoresetMode]


def label(tree):
    return (tree["label"] if isinstance(tree, dict) else tree).copy()


def walk(env, steps):
    """Collect as a collector does; return env, observation, successor, reward, flags and next observation."""
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
def test_rows_are_true_transitions(kind, nested):
    rows = walk(envs_of(kind, nested), steps=30)
    assert len(rows) > 30
    for _, (episode, step), successor, reward, terminated, truncated, after in rows:
        assert successor.tolist() == [episode, step + 1]
        assert reward == step + 1
        over = step + 1 == LENGTHS[int(episode) % 4]
        assert (terminated, truncated) == (over and episode % 2 == 0, over and episode % 2 == 1)
        if over and kind is not AutoresetMode.NEXT_STEP:
            assert after.tolist() == [episode + 1, 0]
    labels = [tuple(row[1].astype(int)) for row in rows if row[0] == 0]
    assert labels == [(e, s) for e in range(30) for s in range(LENGTHS[e % 4])][: len(labels)]


def test_observation_survives_step_and_restart():
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
def test_envs_get_their_seeds(vectorization):
    env = make("CartPole-v1", num_envs=3, vectorization=vectorization)
    alone = [gymnasium.make("CartPole-v1").reset(seed=10 + env_index)[0] for env_index in range(3)]
    np.testing.assert_array_equal(env.reset(10), alone)
    np.testing.assert_array_equal(env.reset([12, 11, 10]), alone[::-1])
    np.testing.assert_array_equal(env.reset_envs(np.array([True, False, False]), [10]), [alone[0], alone[1], alone[0]])
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
def test_info_is_found_by_env(kind):
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


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_self_resetting_envs_refuse_early_restart(mode):
    env = envs_of(mode)
    env.reset(0)
    env.step(np.zeros(2, np.int64))
    with pytest.raises(RlrunError, match="cannot be cut short"):
        env.restart(np.array([True, True]))


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


def test_workers_ignore_interrupts_and_exit_when_closed():
    env = make("CartPole-v1", num_envs=2, vectorization="async")
    env.reset(0)
    assert os.getpgrp() not in [os.getpgid(process.pid) for process in env.vector.processes]
    os.kill(env.vector.processes[0].pid, signal.SIGINT)
    assert env.step(np.zeros(2, np.int64)).reward.tolist() == [1.0, 1.0]
    env.close()
    env.close()
    assert not any(process.is_alive() for process in env.vector.processes)


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


def test_orphaned_workers_exit_silently():
    command = [sys.executable, "-W", "ignore", "-c", ORPHANS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        process.kill()
        out, err = process.communicate(timeout=30)  # ends when nobody holds these pipes any more
    assert (out, err) == (b"", b"")


@pytest.mark.speed
@pytest.mark.parametrize("id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1"])
def test_capture_before_reset_is_cheap(id):
    env = make(id)
    env.record()
    env.reset(0)
    capture = env._recorders[0].reset_state.capture
    assert within(lambda: min(timeit.repeat(capture, timer=time.process_time, number=100, repeat=20)) / 100, 40e-6)


@pytest.mark.speed
@pytest.mark.parametrize("recorded", [False, True])
def test_single_env_is_cheap(recorded):
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

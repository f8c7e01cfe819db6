"""Envs step, end and restart alike in every kind of vector environment."""

import os
import signal
import subprocess
import sys
import time
import timeit

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tests.collect.probes import Labelled, labelled
from tests.pace import within

from rlrun.core.errors import RlrunError
from rlrun.env import make
from rlrun.env.sync import SyncEnv


def test_observation_survives_step_and_restart():
    env = labelled(None, 2)
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
    np.testing.assert_array_equal(env.restart(np.array([True, False, False]), [10]), [alone[0], alone[1], alone[0]])
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


@pytest.mark.parametrize("kind", [None, "workers", *AutoresetMode], ids=str)
def test_info_is_found_by_env(kind):
    env = labelled(kind, 2)
    env.reset(7)
    info = env.step(np.zeros(2, np.int64)).info
    assert [int(info[env_index]["seed"]) for env_index in (0, 1)] == [7, 8]
    assert sorted(info) == [0, 1]
    env.close()


def test_reset_options_reach_every_reset():
    single_env = Labelled()
    env = SyncEnv([single_env], reset_options={"level": 2})
    env.reset(4)
    env.restart(np.array([True]))
    assert single_env.resets == [(4, {"level": 2}), (None, {"level": 2})]


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_self_resetting_envs_refuse_early_restart(mode):
    env = labelled(mode, 2)
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
@pytest.mark.parametrize("recorded", [False, True])
def test_single_env_is_cheap(recorded):
    class Idle(Labelled):
        def step(self, action):
            return last, 0.0, False, False, {}

    env, last, action = SyncEnv([Idle()]), np.zeros(3, np.float32), np.zeros(1, np.int64)
    episode_end = np.zeros(1, bool)
    if recorded:
        env.record()
    env.reset(0)

    def once():
        env.step(action)
        env.restart(episode_end)

    assert within(lambda: min(timeit.repeat(once, timer=time.process_time, number=5000, repeat=5)) / 5000, 5e-6)

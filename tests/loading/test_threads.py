"""Calls in several threads wait for one another, and each gives what it gives alone."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

import rlrun
from rlrun.loading.assembly import one_at_a_time
from rlrun.training.callback import Callback, trained_by

SMALL = [
    *("env=cartpole", "preset=null", "algorithm.hidden=[8]", "logger=[]", "checkpoint.every=0"),
    *("stop.env_steps=96", "evaluation.every=48", "evaluation.episodes=2"),
]
DQN = ["algorithm=dqn", *SMALL, "algorithm.batch_size=8", "algorithm.warmup_steps=32"]
PPO = ["algorithm=ppo", *SMALL, "algorithm.horizon=16", "algorithm.batch_size=8", "num_envs=3"]


def digest(result):
    weights = [part for callback in result.trainer.callbacks.values() for part in trained_by(callback)]
    return result.summary["evaluation"]["mean_return"], [float(weight.sum()) for weight in weights]


def in_threads(*calls):
    with ThreadPoolExecutor(len(calls)) as pool:
        return [each.result() for each in [pool.submit(call) for call in calls]]


def test_runs_in_threads_equal_runs_alone(tmp_path):
    cases = [[*DQN, "seed=3"], [*DQN, "seed=3", "env.vectorization=async", "num_envs=2"], [*PPO, "seed=4"]]
    alone = [digest(rlrun.train(case, run_dir=tmp_path / f"alone{n}")) for n, case in enumerate(cases)]
    jobs = [*enumerate(cases), *enumerate(cases)]
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    calls = [
        lambda number=number, name=name, case=case: (
            number,
            digest(rlrun.train(case, run_dir=tmp_path / f"thread{name}")),
        )
        for name, (number, case) in enumerate(jobs)
    ]
    for number, result in in_threads(*calls):
        assert result == alone[number]
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert after == before


def test_other_functions_wait_as_well(tmp_path):
    run = rlrun.train([*DQN, "stop.env_steps=64"], run_dir=tmp_path / "run").run_dir
    longer = ["stop.env_steps=96"]
    whole = digest(rlrun.train(DQN, run_dir=tmp_path / "whole"))
    returns = rlrun.evaluate(run, episodes=3).returns
    observation = np.zeros(4, np.float32)
    action = rlrun.load(run).predict(observation)[0]
    results = in_threads(
        lambda: digest(rlrun.train(DQN, run_dir=tmp_path / "other")),
        lambda: rlrun.evaluate(run, episodes=3).returns,
        lambda: rlrun.load(run).predict(observation)[0],
        lambda: digest(rlrun.train(PPO, run_dir=tmp_path / "third")) and None,
        lambda: rlrun.evaluate(run, episodes=3).returns,
    )
    assert results == [whole, returns, action, None, returns]
    assert digest(rlrun.resume(run, longer)) == whole


class Inside(Callback):
    """Trains and evaluates another run within an update, and predicts in threads."""

    cycle = 40

    def __init__(self, folder):
        self.folder, self.seen = folder, []

    def end_cycle(self, update):
        result = rlrun.train([*DQN, "stop.env_steps=40"], run_dir=f"{self.folder}/{update}")
        policy = rlrun.load(result)
        actions = in_threads(*[lambda: policy.predict(np.zeros(4, np.float32))[0]] * 3)
        self.seen.append((rlrun.evaluate(result, episodes=1).returns, actions))


def test_a_callback_may_train(tmp_path):
    inside = [f"+callbacks.inside={{_target_: {__name__}.Inside, folder: {tmp_path}/inner}}"]
    alone = rlrun.train(DQN, run_dir=tmp_path / "alone")
    result = rlrun.train([*DQN, *inside], run_dir=tmp_path / "outer")
    assert digest(result) == digest(alone)
    assert len(result.trainer.callbacks["inside"].seen) == 1


def test_a_thread_waits_for_another(monkeypatch):
    entered = []

    def enter(name):
        with one_at_a_time():
            entered.append(name)

    with one_at_a_time():
        enter("own")
        thread = threading.Thread(target=enter, args=("other",))
        thread.start()
        thread.join(0.2)
        assert entered == ["own"]
    thread.join(10)
    assert entered == ["own", "other"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_waits_for_no_thread_that_it_lacks():
    import os

    held, free = threading.Event(), threading.Event()

    def hold():
        with one_at_a_time():
            held.set()
            free.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)
    child = os.fork()
    if not child:
        with one_at_a_time():
            os._exit(7)
    free.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


class Opponent(gymnasium.Env):
    """Asks a policy of another run at each reset, as games against oneself do."""

    def __init__(self, run):
        self.run = run
        self.observation_space, self.action_space = Box(-1.0, 1.0, (4,), np.float32), Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.action = 0, rlrun.load(self.run).predict(np.zeros(4, np.float32))[0]
        return np.zeros(4, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(4, np.float32), float(action == self.action), False, self.steps >= 40, {}


def test_environment_in_a_thread_of_a_run_loads_a_policy(tmp_path):
    run = rlrun.train([*DQN, "stop.env_steps=64"], run_dir=tmp_path / "run").run_dir
    against = ["env=gym", "env.target=tests.loading.test_threads.Opponent", f"+env.kwargs.run={run}"]
    small = [setting for setting in DQN if setting != "env=cartpole"]
    result = rlrun.train([*small, *against, "+with=async", "async.kind=thread"], run_dir=tmp_path / "async")
    assert result.summary["env_steps"] >= 96

"""How a run ends: completed, stopped, or failed because an environment, a callback or a worker left it."""

import json
import os
import re
import select
import signal
import time
from contextlib import suppress

import numpy as np
import pytest

from rlrun.env import make

from .conftest import TINY

MODULE = '''
import faulthandler, os, signal, sys, time

import gymnasium, numpy

from rlrun.training.callback import Callback


class Odd(Exception):
    """Cannot be unpickled."""

    def __init__(self, first, second):
        super().__init__(f"the {first} met\\nthe {second}")


def leave(way):
    faulthandler.disable()
    if way == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    if way == "SIGSEGV":
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)  # Ray, once it is imported, handles it
        os.kill(os.getpid(), signal.SIGSEGV)
    if way == "os._exit":
        os._exit(0)
    if way == "sys.exit":
        sys.exit(0)
    if way == "raise":
        raise Odd("fox", "hen")
    if way == "interrupt":
        raise KeyboardInterrupt
    if way == "hang":
        time.sleep(600)
    if way.startswith("fork"):
        child = os.fork()
        if child == 0:
            if way == "fork exit":
                sys.exit(3)
            raise Odd("fox", "hen")
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code == 1, code


class Leaving(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, way="", at=15, closing=False, reward=1.0, observation=0.0):
        self.way, self.at, self.closing, self.steps = way, at, closing, 0
        self.last = [0.0, observation], reward

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return numpy.zeros(2, numpy.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps == self.at:
            leave(self.way)
        observation, reward = self.last if self.steps == self.at else ([0.0, 0.0], 1.0)
        return numpy.array(observation, numpy.float32), reward, False, self.steps % 7 == 0, {}

    def close(self):
        if self.closing:
            raise RuntimeError("close fails")


class Thief(Callback):
    def begin_training(self, run_dir):
        self.run_dir = run_dir

    def end_batch(self, update):
        if update == 5:
            (self.run_dir / "lock").write_text('{"token": "another", "pid": 77, "host": "elsewhere"}')
            (self.run_dir / "status.json").write_text("{}")


class Caller(Callback):
    def __init__(self, way):
        self.way = way

    def end_batch(self, update):
        if update == 5:
            leave(self.way)
'''
DQN = ("algorithm=dqn", "checkpoint.every=10", "--run-dir", "run")
WAYS = {
    "SIGKILL": r"the process of env [01] is gone: it was killed by SIGKILL",
    "SIGSEGV": r"the process of env [01] is gone: it was killed by SIGSEGV",
    "os._exit": r"the process of env [01] is gone: it left with exit code 0",
    "sys.exit": r"in env [01]: \S+mine.py:\d+ in leave called sys.exit\(0\) before the work was complete",
    "raise": r"in env [01]: Odd: the fox met the hen",
}


@pytest.fixture(autouse=True)
def mine(write):
    write("mine.py", MODULE)


def status(project):
    return json.loads((project / "run" / "status.json").read_text())["status"]


def failing(outcome, project, pattern):
    """Require that a run failed, and that the last line says why."""
    assert outcome.code == 1, outcome
    *_, line = outcome.err.splitlines()
    assert re.fullmatch(f"rlrun: .*{pattern}", line), line
    assert status(project) == "failed"


@pytest.mark.parametrize("way", WAYS)
def test_process_that_leaves_is_named(way, rlrun, tiny_run, project):
    overrides = ("env.target=mine.Leaving", f"env.kwargs.way={way}", "env.vectorization=async", "num_envs=2")
    failing(tiny_run(*DQN, *overrides), project, WAYS[way])
    if way == "raise":
        failing(rlrun("resume", "run", "stop.env_steps=60"), project, WAYS[way])  # its replay counts one episode


@pytest.mark.parametrize(
    "overrides",
    [
        ("env.target=mine.Leaving", "env.kwargs.way=sys.exit"),
        ("env=cartpole", "+callbacks.mine._target_=mine.Caller", "+callbacks.mine.way=sys.exit"),
    ],
)
def test_code_that_exits_makes_the_run_fail(overrides, rlrun, tiny_run, project):
    line = r"mine.py:\d+ in leave called sys.exit\(0\) before the work was complete"
    failing(tiny_run(*DQN, *overrides), project, line)
    failing(rlrun("resume", "run"), project, line)
    assert "Traceback" in (project / "run" / "log.txt").read_text()


@pytest.mark.parametrize("way", ["fork exit", "fork raise"])
def test_a_forked_process_that_leaves_does_nothing_to_the_run(way, forked, project):
    overrides = ("env.target=mine.Leaving", f"env.kwargs.way={way}", "stop.env_steps=22")
    process = forked(["train", *TINY, *DQN, *overrides])
    _, err = process.communicate(timeout=60)
    assert (process.returncode, status(project)) == (0, "completed"), err
    steps = [json.loads(line)["env_steps"] for line in (project / "run" / "metrics.jsonl").read_text().splitlines()]
    assert steps == [22]  # the forked process wrote no record


def test_a_process_that_lost_its_run_stops_at_its_next_write(tiny_run, project):
    overrides = ("env.id=CartPole-v1", "+callbacks.mine._target_=mine.Thief", "stop.env_steps=1_000_000")
    outcome = tiny_run(*DQN, *overrides, "log.every=10")
    lost = f"rlrun: {project / 'run'} was taken over by process 77 on elsewhere; this process stops, and writes "
    assert (outcome.code, outcome.err.splitlines()[-1]) == (1, f"{lost}nothing more to it")
    assert (project / "run" / "status.json").read_text() == "{}"
    assert not (project / "run" / "summary.json").exists()
    assert not (project / "run" / "log.txt").exists()


def test_an_exit_while_the_environment_is_made_is_named(rlrun, write):
    write("gone.py", "import sys\nsys.exit(0)\n")
    outcome = rlrun("check", "algorithm=dqn", "env.target=gone.Env")
    assert (outcome.code, outcome.out) == (1, "")
    assert re.fullmatch(r"rlrun: \S+gone.py:2 in <module> called sys.exit\(0\) .*\n", outcome.err)


@pytest.mark.parametrize("way", ["sync", "async"])
def test_an_environment_that_fails_to_close_ends_no_run(way, tiny_run, project, caplog):
    overrides = ("env.target=mine.Leaving", "env.kwargs.closing=true", f"env.vectorization={way}", "stop.env_steps=12")
    outcome = tiny_run(*DQN, *overrides, "algorithm.warmup_steps=5")
    assert (outcome.code, status(project)) == (0, "completed")
    assert "close failed: RuntimeError: close fails" in caplog.text


def test_processes_of_a_hanging_environment_end_with_their_parent(monkeypatch, project):
    monkeypatch.syspath_prepend(project)
    pipe, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            env = make(target="mine.Leaving", kwargs={"way": "hang", "at": 1}, num_envs=2, vectorization="async")
            env.reset(0)
            os.write(theirs, b"ready")
            env.step(np.zeros(2, np.int64))
        os._exit(1)
    os.close(theirs)
    assert os.read(pipe, 5) == b"ready"
    time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert select.select([pipe], [], [], 10.0)[0]  # nobody holds the other end any more
    assert os.read(pipe, 1) == b""
    os.close(pipe)


# --- failures and signals

FAILURES = {
    ("env.kwargs.way=raise", "sync"): "Odd: the fox met the hen",
    ("env.kwargs.reward=nan", "sync"): "reward = nan in env 0 after 14 environment steps",
    ("env.kwargs.observation=-inf", "async"): "observation[1] = -inf in env 0",
}


@pytest.mark.parametrize(("override", "envs"), FAILURES)
def test_a_run_that_fails_says_so_in_one_line(override, envs, tiny_run, project):
    overrides = ("algorithm=dqn", "env.target=mine.Leaving", override, f"env.vectorization={envs}")
    outcome = tiny_run(*overrides, "--run-dir", "run")
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1), outcome
    assert FAILURES[override, envs] in outcome.err
    assert "Traceback (most recent call last)" in (project / "run" / "log.txt").read_text()
    for name in ("status.json", "summary.json"):
        assert json.loads((project / "run" / name).read_text())["status"] == "failed"
    assert list((project / "run" / "checkpoints").iterdir()) == []  # none of a broken state


CALLER = ("algorithm=dqn", "env=cartpole", "preset=null", "+callbacks.mine._target_=mine.Caller")


def test_the_hook_that_fails_is_named(tiny_run):
    outcome = tiny_run(*CALLER, "+callbacks.mine.way=raise")
    assert (outcome.code, outcome.err.splitlines()[-1]) == (
        1,
        "rlrun: in callbacks.mine.end_batch: Odd: the fox met the hen (--debug shows where)",
    )


def test_a_run_that_was_left_at_once_is_resumable(tiny_run, project):
    message = f"stopped by a signal; continue with: rlrun resume {project / 'run'}\n"
    assert tiny_run(*CALLER, "+callbacks.mine.way=interrupt", "--run-dir", "run") == (75, "", message)
    assert status(project) == "stopped"


WAITING = """
import time
from rlrun.env.toys import Bandit

def wait(place):
    if place == {place!r}:
        print("waiting", flush=True)
        time.sleep(30)

class Final:
    def __del__(self):
        wait("finalizer")  # cut short by the interrupt, which nobody hears of: it is raised in a finalizer

class Waits(Bandit):
    def __init__(self):
        wait("making")
        super().__init__()

    def reset(self, **options):
        wait("reset")
        return super().reset(**options)

Final()
wait("import")
"""


@pytest.fixture
def hindered(forked):
    """Start training, wait until its environment says that it waits, and send a signal; return what said the end."""

    def train(number, *overrides, seconds):
        process = forked(["train", "algorithm=dqn", *overrides, "--run-dir", "run"])
        process.until(process.printed)
        process.send_signal(number)
        _, err = process.communicate(timeout=seconds)
        return process.returncode, err

    return train


@pytest.mark.parametrize("place", ["finalizer", "reset"])
def test_signal_before_the_first_step_stops_the_run(place, write, project, hindered):
    write("waiting.py", WAITING.format(place=place))
    assert hindered(signal.SIGTERM, "env.target=waiting.Waits", seconds=25)[0] == 75
    assert status(project) == "stopped"


@pytest.mark.parametrize(
    ("number", "place", "vectorization"),
    [(signal.SIGTERM, "import", "sync"), (signal.SIGUSR1, "making", "sync"), (signal.SIGINT, "making", "async")],
)
def test_a_signal_before_training_leaves_nothing_behind(number, place, vectorization, write, project, hindered):
    write("waiting.py", WAITING.format(place=place))
    outcome = hindered(number, "env.target=waiting.Waits", f"env.vectorization={vectorization}", seconds=15)
    name = signal.Signals(number).name
    assert outcome == (128 + number, f"rlrun: stopped by {name}; no run was started\n")
    assert not (project / "run").exists()


def test_a_signal_before_training_leaves_a_run_that_continues(write, project, hindered):
    write("waiting.py", WAITING.format(place="making"))
    outcome = hindered(signal.SIGTERM, "env.target=waiting.Waits", "env.vectorization=sync", "--continue", seconds=15)
    assert outcome == (75, "rlrun: stopped by SIGTERM; the run is unchanged\n")
    assert [path.name for path in (project / "run").iterdir()] == ["lock"]

"""How a run ends: failed, stopped or completed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

ENVIRONMENT = """
import gymnasium, numpy

class Failing(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, reward=1.0, observation=0.0, error=False):
        self.last = reward, observation, error

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return numpy.zeros(2, numpy.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps < 30:
            return numpy.zeros(2, numpy.float32), 1.0, False, False, {}
        reward, observation, error = self.last
        if error:
            raise RuntimeError("the motor broke\\nbadly")
        return numpy.array([0.0, observation], numpy.float32), reward, False, False, {}
"""

CALLBACK = """
from rlrun.training.callback import Callback

class Mine(Callback):
    data_group = "default"

    def end_batch(self, reward):
        raise KeyError("lost")
"""

FAILURES = {
    "env.kwargs.error=true": ["RuntimeError", "the motor broke"],
    "env.kwargs.reward=nan": ["reward = nan in env 0", "environment steps"],
    "env.kwargs.reward=-inf": ["reward = -inf in env 0"],
    "env.kwargs.observation=inf": ["observation[1] = inf in env 0"],
}


@pytest.mark.parametrize("envs", ["sync", "async"])
@pytest.mark.parametrize("override", FAILURES)
def test_a_run_that_fails_says_so_in_one_line(override, envs, tiny_run, write, project):
    write("failing.py", ENVIRONMENT)
    overrides = (
        "algorithm=dqn",
        "env.target=failing.Failing",
        override,
        f"env.vectorization={envs}",
        "--run-dir",
        "run",
    )
    outcome = tiny_run(*overrides)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1), outcome
    assert [part for part in FAILURES[override] if part not in outcome.err] == [], outcome.err
    assert "Traceback (most recent call last)" in (project / "run" / "log.txt").read_text()
    for name in ("status.json", "summary.json"):
        assert json.loads((project / "run" / name).read_text())["status"] == "failed"
    assert list((project / "run" / "checkpoints").iterdir()) == []  # none of a broken state


def test_the_hook_that_fails_is_named(tiny_run, write):
    write("mine.py", CALLBACK)
    outcome = tiny_run("algorithm=dqn", "env=chain", "+callbacks.mine._target_=mine.Mine")
    assert (outcome.code, outcome.err.splitlines()[-1]) == (
        1,
        "rlrun: in callbacks.mine.end_batch: KeyError: 'lost' (--debug shows where)",
    )


def test_a_failing_lane_is_named(tiny_run, write):
    write("failing.py", ENVIRONMENT)
    overrides = (
        "algorithm=dqn",
        "env.target=failing.Failing",
        "env.kwargs.reward=nan",
        "num_envs=2",
        "stop.env_steps=90",
    )
    outcome = tiny_run(*overrides)
    assert "after 58 environment steps" in outcome.err  # 29 good rounds of two envs


def test_a_signal_stops_a_run_in_order(project):
    overrides = [
        "algorithm=dqn",
        "env=cartpole",
        "preset=null",
        "algorithm.hidden=[8]",
        "algorithm.warmup_steps=20",
        "log.every=10",
    ]
    command = [sys.executable, "-m", "rlrun", "train", *overrides, "logger=[]", "--run-dir", "run"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    metrics = project / "run" / "metrics.jsonl"
    while process.poll() is None and not (metrics.is_file() and metrics.stat().st_size):
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    message = f"stopped by SIGTERM; continue with: rlrun resume {project / 'run'}\n"
    assert (process.returncode, err) == (75, message)
    assert (project / "run" / "log.txt").read_text().endswith(message)
    assert out.startswith("stopped: ")
    assert json.loads((project / "run" / "status.json").read_text())["status"] == "stopped"
    assert (project / "run" / "checkpoints" / "latest").is_file()


LEAVING = """
from rlrun.training.callback import Callback


class Leaving(Callback):
    def end_batch(self, update):
        if update == 5:
            raise KeyboardInterrupt
"""


def test_a_run_that_was_left_at_once_is_resumable(tiny_run, write, project):
    write("leaving.py", LEAVING)
    overrides = (
        "algorithm=dqn",
        "env=cartpole",
        "preset=null",
        "+callbacks.mine._target_=leaving.Leaving",
        "--run-dir",
        "run",
    )
    message = f"stopped by a signal; continue with: rlrun resume {project / 'run'}\n"
    assert tiny_run(*overrides) == (75, "", message)
    assert json.loads((project / "run" / "status.json").read_text())["status"] == "stopped"


SLOW = """
import time
import gymnasium
from rlrun.env.toys import Bandit


class Slow(Bandit):
    def reset(self, **options):
        print("resetting", flush=True)
        time.sleep(20)
        return super().reset(**options)
"""


SWALLOWED = """
import time
from rlrun.env.toys import Bandit

class Final:
    def __del__(self):
        print("waiting", flush=True)
        time.sleep(30)  # cut short by the interrupt, which nobody hears of: it is raised in a finaliser

Final()

class Swallowed(Bandit):
    pass
"""


@pytest.fixture
def hindered(forked):
    """Start training, wait until its environment says that it waits, and send a signal; return what told the end."""

    def train(number, *overrides, seconds):
        process = forked(["train", "algorithm=dqn", *overrides, "--run-dir", "run"])
        process.until(process.printed)
        process.send_signal(number)
        _, err = process.communicate(timeout=seconds)
        return process.returncode, err

    return train


@pytest.mark.parametrize(("code", "name"), [(SWALLOWED, "Swallowed"), (SLOW, "Slow")])
def test_signal_before_the_first_step_stops_the_run(code, name, write, project, hindered):
    write("waiting.py", code)
    assert hindered(signal.SIGTERM, f"env.target=waiting.{name}", seconds=25)[0] == 75
    assert json.loads((project / "run" / "status.json").read_text())["status"] == "stopped"


BEFORE = """
import time
import gymnasium
from rlrun.env.toys import Bandit

def wait():
    print("waiting", flush=True)
    time.sleep(30)

if {importing}:
    wait()

class Slow(Bandit):
    def __init__(self):
        wait()
"""


@pytest.mark.parametrize(
    ("number", "importing", "vectorization"),
    [(signal.SIGTERM, True, "sync"), (signal.SIGUSR1, False, "sync"), (signal.SIGINT, False, "async")],
)
def test_a_signal_before_training_leaves_nothing_behind(number, importing, vectorization, write, project, hindered):
    write("before.py", BEFORE.format(importing=importing))
    outcome = hindered(number, "env.target=before.Slow", f"env.vectorization={vectorization}", seconds=15)
    name = signal.Signals(number).name
    assert outcome == (128 + number, f"rlrun: stopped by {name}; no run was started\n")
    assert not (project / "run").exists()

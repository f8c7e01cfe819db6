"""How a run ends: failed, stopped or completed; and what `eval` makes of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

import rlrun as package
from rlrun import checkpointing as storage
from rlrun.runs.directory import RunDir

from .conftest import TINY

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


def test_check_tells_sizes_in_units_that_fit(rlrun):
    lines = rlrun("check", "algorithm=dqn", "env=cartpole", "preset=null", "memory.length=500").out.splitlines()
    assert any(re.fullmatch(r"memory +up to [\d.]+ kB", line) for line in lines)
    assert any(re.fullmatch(r"disk +[\d.]+ GB free; a checkpoint takes up to [\d.]+ [kM]B", line) for line in lines)


# --- eval


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    overrides = ("evaluation.every=20", "evaluation.episodes=1", "evaluation.max_steps=5", "checkpoint.every=20")
    overrides = ("algorithm=sac", "env=pendulum", *TINY, "algorithm.warmup_steps=10", *overrides)
    return package.train(overrides, run_dir=tmp_path_factory.mktemp("trained") / "run").run_dir


@pytest.fixture
def run(trained, project):
    return shutil.copytree(trained, project / "run")


def test_eval_prints_one_object(run, rlrun):
    outcome = rlrun("eval", "run", "--json", "--episodes", "3", "--seed", "7")
    report = json.loads(outcome.out)
    assert (outcome.code, outcome.err, outcome.out.count("\n")) == (0, "", 1)
    assert set(report) == {
        *("run", "checkpoint", "env_steps", "seed", "seeds", "episodes"),
        *("returns", "lengths", "mean_return", "std_return"),
        *("latest", "best", "endings", "mean_interval", "videos"),
    }
    assert (report["run"], report["env_steps"], report["seed"], report["seeds"]) == (str(run), 40, 7, [7, 8, 9])
    assert report["mean_return"] == pytest.approx(sum(report["returns"]) / 3)
    assert (report["episodes"], report["lengths"]) == (3, [5, 5, 5])
    line = rlrun("eval", "run", "--episodes", "2").out
    assert (line.startswith("mean return -"), "over 2 episodes" in line, line.count("\n")) == (True, True, 1)


def test_eval_takes_the_latest_checkpoint_unless_told(run, rlrun):
    def checkpoint(*overrides: str) -> str:
        return json.loads(rlrun("eval", "run", "--json", "--episodes", "1", *overrides).out)["checkpoint"]

    assert checkpoint() == checkpoint("--checkpoint", "latest") == checkpoint("--checkpoint", "40")
    assert checkpoint("--checkpoint", "20").startswith("0000000020-")
    assert checkpoint("--checkpoint", "best") == (run / "checkpoints" / "best").read_text().strip()


def test_eval_names_the_newest_good_checkpoint_in_place_of_a_damaged_one(run, rlrun, project):
    run_dir = RunDir(project / "run")
    (run_dir.checkpoint("latest") / "state.json").write_text("{}")
    outcome = rlrun("eval", "run", "--episodes", "1")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "state.json is damaged" in outcome.err
    assert outcome.err.endswith("; --checkpoint 20 is the newest good one\n")
    good = rlrun("eval", "run", "--episodes", "1", "--checkpoint", "20")
    assert (good.code, "over 1 episode (" in good.out) == (0, True)


def test_a_run_of_the_users_own_environment_can_be_evaluated(tiny_run, rlrun, write):
    write("failing.py", ENVIRONMENT)
    overrides = ("env.target=failing.Failing", "stop.env_steps=25", "evaluation.max_steps=9", "--run-dir", "run")
    assert tiny_run("algorithm=dqn", *overrides).code == 0
    # a process of its own: this one knows the user's folder since the training
    command = [sys.executable, "-m", "rlrun", "eval", "run", "--episodes", "1", "--json"]
    outcome = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(outcome.stdout)["returns"] == [9.0]


def test_eval_refuses_a_checkpoint_that_lacks_a_part(run, rlrun, project):
    checkpoint = RunDir(project / "run").checkpoint("latest")
    states = storage.load(checkpoint)
    part = next(path for path in states if path.startswith("networks."))
    states[f"{part}s"] = states.pop(part)
    storage.save(checkpoint, states)
    outcome = rlrun("eval", "run", "--episodes", "1")
    assert outcome.code == 2
    assert f"holds no part '{part}' (did you mean '{part}s'?)" in outcome.err


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


def test_a_signal_that_a_finaliser_swallowed_still_stops_the_run(write, project, hindered):
    write("swallowed.py", SWALLOWED)
    assert hindered(signal.SIGTERM, "env.target=swallowed.Swallowed", seconds=25)[0] == 75
    assert json.loads((project / "run" / "status.json").read_text())["status"] == "stopped"


def test_signal_while_the_environment_resets_stops_the_run(write, project, hindered):
    write("slow.py", SLOW)
    assert hindered(signal.SIGTERM, "env.target=slow.Slow", seconds=15)[0] == 75
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
    assert outcome == (128 + number, f"rlrun: stopped by {name}; nothing was begun\n")
    assert not (project / "run").exists()

"""How a run ends: failed, stopped or completed."""

import json
import signal

import pytest

from .conftest import TINY
from .test_leaving import MODULE

FAILURES = {
    "env.kwargs.way=raise": "Odd: the fox met the hen",
    "env.kwargs.reward=nan": "reward = nan in env 0 after 14 environment steps",
    "env.kwargs.reward=-inf": "reward = -inf in env 0",
    "env.kwargs.observation=inf": "observation[1] = inf in env 0",
}


@pytest.fixture(autouse=True)
def mine(write):
    write("mine.py", MODULE)


@pytest.mark.parametrize("envs", ["sync", "async"])
@pytest.mark.parametrize("override", FAILURES)
def test_a_run_that_fails_says_so_in_one_line(override, envs, tiny_run, project):
    overrides = ("algorithm=dqn", "env.target=mine.Leaving", override, f"env.vectorization={envs}")
    outcome = tiny_run(*overrides, "--run-dir", "run")
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1), outcome
    assert FAILURES[override] in outcome.err
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


def test_a_signal_stops_a_run_in_order(forked, project):
    overrides = ["algorithm=dqn", "env=cartpole", "preset=null", *TINY, "stop.env_steps=1_000_000", "log.every=10"]
    process = forked(["train", *overrides, "--run-dir", "run"])
    metrics = project / "run" / "metrics.jsonl"
    process.until(lambda: metrics.is_file() and metrics.stat().st_size)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    message = f"stopped by SIGTERM; continue with: rlrun resume {project / 'run'}\n"
    assert (process.returncode, err) == (75, message)
    assert (project / "run" / "log.txt").read_text().endswith(message)
    assert out.startswith("stopped: ")
    assert json.loads((project / "run" / "status.json").read_text())["status"] == "stopped"
    assert (project / "run" / "checkpoints" / "latest").is_file()


def test_a_run_that_was_left_at_once_is_resumable(tiny_run, project):
    message = f"stopped by a signal; continue with: rlrun resume {project / 'run'}\n"
    assert tiny_run(*CALLER, "+callbacks.mine.way=interrupt", "--run-dir", "run") == (75, "", message)
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
    """Start training, wait until its environment says that it waits, and send a signal; return what said the end."""

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

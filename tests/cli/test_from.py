"""`rlrun train --from` as a user calls it; also with the callback of docs/extending.md, as the page has it."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

import rlrun as package
from rlrun import checkpointing as storage
from rlrun.runs.directory import RunDir

from .conftest import TINY

WORDS = ("algorithm=dqn", "env=cartpole", "preset=null", "checkpoint.every=20", "device=cpu", "memory.length=500")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return package.train([*TINY, *WORDS], run_dir=tmp_path_factory.mktemp("trained") / "run").run_dir


@pytest.fixture
def first(trained, project):
    return shutil.copytree(trained, project / "first")


def test_the_same_with_another_learning_rate(rlrun, first, project):
    outcome = rlrun("train", "--from", "first", "algorithm.lr=1e-4", "stop.env_steps=60", "--run-dir", "second")
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("completed: 60 env steps, 40 updates")
    lines = outcome.err.splitlines()
    assert lines[0] == f"starts from {first}/checkpoints/0000000040-0000000020 (40 env steps, 20 updates)"
    assert lines[1].split() == ["part", "loaded", "skipped", "missing", "misfit"]
    assert lines[-1].split() == ["total", *lines[-1].split()[1:2], "0", "0", "0"]
    about = json.loads((project / "second" / "manifest.json").read_text())
    assert (about["parent"]["run"], about["parent"]["updates"]) == (str(first), 20)


def test_a_dry_run_tells_what_would_be_loaded_and_writes_nothing(rlrun, first, project):
    outcome = rlrun("train", "--from", "first@21", "init.memory=skip", "stop.env_steps=80", "--dry-run")
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("loader ")
    assert "starts from" in outcome.err
    assert "skipped: memory\n" in outcome.err
    assert sorted(path.name for path in project.iterdir()) == ["first"]


def test_a_dry_run_names_everything_also_where_the_budget_is_spent(rlrun, first, project):
    outcome = rlrun("train", "--from", "first", "--dry-run")
    assert (outcome.code, outcome.out) == (2, "")
    *report, error = outcome.err.splitlines()
    assert "stop.env_steps=40: the parent has made 40 of them" in error
    (loaded,) = [line.removeprefix("loaded: ").split(", ") for line in report if line.startswith("loaded: ")]
    assert {"networks.q.layers.layers.0.weight", "collector.steps", "memory"} <= set(loaded)
    assert str(len(loaded)) == next(line.split()[1] for line in report if line.startswith("total"))
    skipped = rlrun("train", "--from", "first", "load.weights=false", "stop.env_steps=60", "--dry-run").err
    assert " more" not in skipped
    assert sorted(path.name for path in project.iterdir()) == ["first"]


def test_a_fork_without_a_network_of_the_parent_says_so(rlrun, first, project):
    overrides = ("train", "--from", "first", "stop.env_steps=41", "load.weights=false")
    warning = "no network was loaded: all are initialized"
    outcome = rlrun(*overrides, "--run-dir", "second")
    assert outcome.err.splitlines()[-1] == f"{warning}, and the warm-up is over; init.numbers=skip begins with it"
    assert warning in (project / "second" / "log.txt").read_text()
    assert rlrun(*overrides, "load.numbers=false", "--dry-run").err.splitlines()[-1] == warning
    assert warning not in rlrun("train", "--from", "first", "stop.env_steps=60", "--dry-run").err


# --- a callback of the user's

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()
(CODE,) = (code for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "class Ends" in code)
OVERRIDES = ("algorithm=dqn", "env=cartpole", "preset=null", "log.every=10", "+callbacks.mine._target_=mine.Ends")


@pytest.fixture
def mine(write):
    write("mine.py", CODE)


@pytest.mark.usefixtures("mine")
def test_it_is_logged_resumed_and_taken_over(tiny_run, rlrun, project):
    assert tiny_run(*OVERRIDES, "--run-dir", "run").code == 0
    last = json.loads((project / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    seen = storage.load(RunDir(project / "run").checkpoint())["callbacks.mine"]["seen"]
    assert float(seen) == last["mine/ends"]
    fork = rlrun("train", "--from", "run", "stop.env_steps=41", "--run-dir", "fork")
    assert fork.code == 0, fork.err
    first = RunDir(project / "fork").checkpoint_dirs()[0]
    assert torch.equal(storage.load(first)["callbacks.mine"]["seen"], seen)
    resumed = rlrun("resume", "run", "stop.env_steps=60")
    assert resumed.code == 0, resumed.err
    assert float(storage.load(RunDir(project / "run").checkpoint())["callbacks.mine"]["seen"]) >= float(seen)


@pytest.mark.usefixtures("mine")
def test_a_file_of_its_own_makes_it_a_choice(rlrun, write):
    assert "`# @package _global_`" in PAGE
    write("conf/with/ends.yaml", "# @package _global_\ncallbacks: {mine: {_target_: mine.Ends}}\n")
    assert "counts up to" in rlrun("explain", "algorithm=dqn", "env=cartpole", "+with=ends").out


def test_a_state_that_a_callback_does_not_take_is_told_in_one_line(tiny_run, rlrun, write):
    write("mine.py", CODE.replace('self.seen = state["seen"]', 'self.seen = state["gone"]'))
    assert tiny_run(*OVERRIDES, "--run-dir", "run").code == 0
    fork = rlrun("train", "--from", "run", "stop.env_steps=60")
    assert (fork.code, fork.err.count("\n")) == (2, 1)
    assert "init.from: callbacks.mine does not fit: " in fork.err

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
    outcome = rlrun("train", "--from", "first", "algorithm.lr=1e-4", "stop.env_steps=30", "--run-dir", "second")
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("completed: 30 env steps, 30 updates")
    where = f"starts from {first}/checkpoints/0000000040-0000000020 (40 env steps, 20 updates): "
    assert outcome.err.splitlines()[0].startswith(f"{where}networks.q, callbacks.")
    about = json.loads((project / "second" / "manifest.json").read_text())
    assert (about["parent"]["run"], about["parent"]["updates"]) == (str(first), 20)


def test_a_dry_run_tells_what_would_be_loaded_and_writes_nothing(rlrun, first, project):
    outcome = rlrun("train", "--from", "first@21", "init.memory=null", "--dry-run")
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("loader ")
    assert "0000000021-0000000001 (21 env steps, 1 updates): networks.q" in outcome.err
    assert "transitions" not in outcome.err
    assert sorted(path.name for path in project.iterdir()) == ["first"]


def test_a_sweep_of_forks(rlrun, first, project):
    overrides = (*TINY, *WORDS, "stop.env_steps=24", "init.networks=first,first@21")
    outcome = rlrun("train", "-m", *overrides, "--sweep-dir", "sweep", "--workers", "1")
    assert outcome.code == 0, outcome.err
    manifests = [json.loads(path.read_text()) for path in (project / "sweep").glob("jobs/*/manifest.json")]
    assert {about["parent"]["env_steps"] for about in manifests} == {21, 40}


def test_a_sweep_whose_parents_are_not_there_does_not_begin(rlrun, first, project):
    for varied in (("seed=0,1",), ("+sweep=optuna", "algorithm.lr=interval(1e-4,1e-3)", "evaluation.every=8")):
        outcome = rlrun("train", "-m", *TINY, *WORDS, *varied, "init.networks=nope", "--sweep-dir", "sweep")
        assert (outcome.code, outcome.err) == (2, f"rlrun: init.networks: {project / 'nope'} does not exist\n")
        assert not (project / "sweep").exists()


def test_the_parent_may_follow_from_another_key(rlrun, first, write):
    write("conf/with/seeded.yaml", "# @package _global_\ninit: {networks: 'first@2${seed}'}\n")
    outcome = rlrun("train", *TINY, *WORDS, "+with=seeded", "seed=1", "--dry-run")
    assert "0000000021-0000000001 (21 env steps" in outcome.err
    assert "no checkpoint '23'" in rlrun("train", *TINY, *WORDS, "+with=seeded", "seed=3", "--dry-run").err


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
    fork = rlrun("train", "--from", "run", "stop.env_steps=22", "--run-dir", "fork")
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
    assert "init: callbacks.mine does not fit: " in fork.err

"""The callback of docs/extending.md, as the page has it: explained, trained, resumed, forked."""

import json
import re
from pathlib import Path

import pytest
import torch

from rlrun import checkpointing as storage
from rlrun.runs.directory import RunDir

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()
(CODE,) = (code for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "class Ends" in code)
WORDS = ("algorithm=dqn", "env=cartpole", "preset=null", "log.every=10", "+callbacks.mine._target_=mine.Ends")


@pytest.fixture
def mine(write):
    write("mine.py", CODE)


@pytest.mark.usefixtures("mine")
def test_it_is_logged_resumed_and_taken_over(tiny_run, rlrun, project):
    assert tiny_run(*WORDS, "--run-dir", "run").code == 0
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
    assert tiny_run(*WORDS, "--run-dir", "run").code == 0
    fork = rlrun("train", "--from", "run", "stop.env_steps=60")
    assert (fork.code, fork.err.count("\n")) == (2, 1)
    assert "init.from: callbacks.mine does not fit: " in fork.err

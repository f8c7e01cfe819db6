"""`rlrun resume` as a user calls it: after kills, on finished runs, and when it is refused."""

import json
import os
import re
import shutil

import pytest
from omegaconf import OmegaConf
from tests.identical import stamps

import rlrun
from rlrun.commands.resume import CHANGEABLE
from rlrun.runs.directory import RunDir
from rlrun.runs.heartbeat import lock_run

from .conftest import TINY


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    overrides = ("algorithm=dqn", "env=cartpole", "checkpoint.every=10", "checkpoint.memory=true", "log.every=10")
    return rlrun.train([*TINY, *overrides], run_dir=tmp_path_factory.mktemp("trained") / "run").run_dir


@pytest.fixture
def run(trained, project):
    return RunDir(shutil.copytree(trained, project / "run"))


@pytest.mark.parametrize(
    "overrides",
    [(), *((text,) for text in ("stop.env_steps=30", "stop.env_steps=40", "stop.updates=20", "logger=[terminal]"))],
)
def test_a_finished_run_stays_as_it_is(overrides, run, rlrun):
    before = stamps(run.path)
    outcome = rlrun("resume", "run", *overrides)
    assert outcome.code == 0
    assert outcome.out.startswith("completed: 40 env steps, ")
    assert re.fullmatch(r"the run is finished at [\d,]+ steps; stop.env_steps=… beyond that extends it\n", outcome.err)
    assert stamps(run.path) == before


def test_reached_limits_extend_a_run(run, rlrun):
    config = OmegaConf.load(run.config)
    config.stop.update(mean_return=5.0, env_steps=99)
    OmegaConf.save(config, run.config)
    summary = json.loads(run.summary.read_text()) | {"evaluation": {"mean_return": 5.0, "std_return": 0, "episodes": 1}}
    run.summary.write_text(json.dumps(summary))
    way_out = "; stop.mean_return=… beyond that extends it\n"
    assert rlrun("resume", "run", "--trust").err.endswith(way_out)
    assert rlrun("resume", "run", "stop.env_steps=200").err.endswith(way_out)


@pytest.mark.parametrize("override", ["stop.env_steps=30", "stop.env_steps=40", "stop={updates: 15}"])
def test_a_budget_that_is_reached_is_refused(override, run, rlrun):
    run.write_status("stopped")
    before = stamps(run.path)
    outcome = rlrun("resume", "run", override)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert re.search(r"stop\.(env_steps|updates)=\d+: the run is already at (40 environment steps|20 upd)", outcome.err)
    assert stamps(run.path) == before


def test_a_run_in_progress_is_refused_with_process_and_host(run, rlrun):
    with lock_run(run):
        outcome = rlrun("resume", "run")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    status = json.loads(run.status.read_text())
    assert f"process {os.getpid()} on {status['host']} works on it" in outcome.err
    assert outcome.err.endswith("; end that process\n")


def test_damage_is_told_and_the_one_before_is_taken(forked, run):
    *_, before, newest = run.checkpoint_dirs()
    (newest / "state.json").write_text("{}")
    process = forked(["resume", "run", "stop.env_steps=60"])
    out, err = process.communicate(timeout=60)
    damage, where = err.splitlines()
    assert process.returncode == 0
    assert out.startswith("completed: 60 env steps, ")
    assert f"{newest}/state.json is damaged" in damage
    assert damage.endswith(f"resuming from checkpoint {before.name}")
    assert where == f"resume: exact: from checkpoint {before.name}"
    log = run.log.read_text()
    assert damage in log
    assert where in log


def test_a_run_that_lost_records_is_called_approximate(run, rlrun, caplog):
    run.metrics.write_text("")
    assert rlrun("resume", "run", "stop.env_steps=60").code == 0
    assert "the run does not continue exactly: metrics.jsonl has lost 2 of 2 records" in caplog.text
    assert run.log.read_text().count("the run does not continue exactly: ") == 1
    assert json.loads(run.manifest.read_text())["resume"] == "approximate"


def test_help_names_what_may_change(rlrun):
    text = rlrun("resume", "--help").out
    assert [key for key in CHANGEABLE if not re.search(rf"\b{re.escape(key)}\b", text)] == []


def test_only_damage_is_refused_and_nothing_deleted(run, rlrun):
    run.write_status("failed")
    for path in run.checkpoint_dirs():
        (path / "state.json").write_text("{}")
    before = stamps(run.path)
    outcome = rlrun("resume", "run")
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert re.search(r"none of the 3 checkpoints can be read; of the newest: .*damaged", outcome.err)
    assert stamps(run.path) == before

"""Runs of the version before the renames: they load, resume and are reported under today's names.

`before.tar.xz` holds small runs made by commit b4bfa08: SAC with prioritized memory and normalized observations,
recurrent PPO, PPG with a KL limit, TD3 with its memory on disk, SAC `+with=async`, and a sweep of three DQN jobs.
`digests.json` holds the digest of each part of each checkpoint, as that commit computed them.
"""

import json
import shutil
import tarfile
from pathlib import Path

import pytest

from rlrun import checkpointing
from rlrun.checkpointing import digest
from rlrun.collect import links
from rlrun.commands.resume import resume
from rlrun.commands.train import Experiment
from rlrun.config.composition import Composed
from rlrun.loading.assembly import machine_of
from rlrun.loading.policy import arrived
from rlrun.runs.directory import RunDir

RUNS = ("sac", "ppo", "ppg", "disk", "async")
NOT_COMPARED = ("env", "generators")  # set when training begins


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    folder = tmp_path_factory.mktemp("before")
    with tarfile.open(Path(__file__).with_name("before.tar.xz")) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.mark.parametrize("name", RUNS)
def test_run_of_before_loads_with_equal_digests(before, name):
    expected = json.loads((before / "digests.json").read_text())[name]
    for checkpoint, parts in expected.items():
        states = checkpointing.load(before / name / "checkpoints" / checkpoint)
        assert {part: digest(state) for part, state in states.items()} == parts
    newest = RunDir.open(before / name).checkpoint()
    with arrived(before / name, ()) as arrival:
        experiment = Experiment(Composed(arrival.config, [], {}, [], before), machine=machine_of(arrival.about))
        experiment.restore(checkpointing.load(newest), newest)
        for part, built in experiment.parts.items():
            if part not in NOT_COMPARED:
                assert digest(built.state_dict()) == digest(checkpointing.load(newest, [part])[part]), part


@pytest.mark.parametrize("name", RUNS)
def test_a_run_of_before_is_extended(before, name, tmp_path, monkeypatch, children):
    monkeypatch.setattr(links, "_start", children.worker)  # a process that has imported everything
    run = tmp_path / name
    shutil.copytree(before / name, run)
    summary = resume(run, ["stop.env_steps=320"]).summary
    assert (summary["status"], summary["env_steps"] >= 320) == ("completed", True)


def test_sweep_of_before_is_completed(before, project, rlrun):
    shutil.copytree(before / "sweep", project / "sweep")
    answer = rlrun("resume", "sweep")
    assert answer.code == 0, answer.err
    assert "3 completed" in answer.out + answer.err

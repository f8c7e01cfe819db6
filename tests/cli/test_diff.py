"""What differs between two runs."""

import json
import shutil

import pytest

import rlrun as package
from rlrun.core.files import read_json, write_json
from rlrun.runs.directory import RunDir

TINY = (
    *("algorithm=dqn", "env.target=rlrun.env.toys.Bandit", "memory.length=500", "algorithm.hidden=[8]"),
    *("algorithm.warmup_steps=50", "algorithm.batch_size=8", "logger=[]", "evaluation.every=0", "stop.env_steps=100"),
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    package.train([*TINY, "seed=1"], run_dir=folder / "one")
    package.train([*TINY, "seed=1", "algorithm.lr=0.01", "+with=reward_clip"], run_dir=folder / "other")
    return folder


@pytest.fixture
def runs(trained, tmp_path, monkeypatch):
    for name in ("one", "other"):
        shutil.copytree(trained / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def change(path, **values):
    write_json(path, {**read_json(path), **values})


def test_keys_that_differ_are_told_with_who_set_them(runs):
    difference = package.diff("one", "other")
    clip = "memory.adaptors.reward_clip"
    assert set(difference.config) == {"algorithm.lr", f"{clip}._target_", f"{clip}.lowest", f"{clip}.highest"}
    first, second = difference.config["algorithm.lr"]
    assert (first.value, first.set_by) == (5e-4, "rlrun/algorithm/dqn.yaml")
    assert (second.value, second.set_by) == (0.01, "override")
    assert difference.config[f"{clip}.lowest"].first.value == "absent"
    assert difference.config[f"{clip}.lowest"].second.set_by == "rlrun/with/reward_clip.yaml"
    assert difference.circumstances == {}


def test_a_run_and_its_copy_differ_in_nothing(runs, rlrun):
    shutil.copytree("one", "copy")
    change(RunDir("copy").summary, seconds=99.0)  # the machine was busy
    assert package.diff("one", "copy").empty
    assert rlrun("diff", "one", "copy") == (0, "no difference but the time that it took\n", "")
    assert rlrun("diff", "one", "one") == (0, "no difference\n", "")


@pytest.mark.parametrize(("resume", "expected"), [("exact", set()), ("approximate", {"resume"})])
def test_only_an_approximate_resume_is_a_difference(resume, expected, runs):
    change(RunDir("other").manifest, resume=resume)
    assert set(package.diff("one", "other").circumstances) == expected


def test_versions_source_and_machine_are_compared(runs):
    about = RunDir("other").manifest
    change(about, packages={**read_json(about)["packages"], "torch": "1.0"}, git={"commit": "abc", "dirty": None})
    difference = package.diff("one", "other")
    assert set(difference.circumstances) == {"torch", "git"}
    assert difference.circumstances["torch"].second.value == "1.0"


def test_the_command_prints_both_sides_and_json(runs, rlrun):
    lines = rlrun("diff", "one", "other").out.splitlines()
    assert lines[0] == "config"
    assert lines[1].split() == ["algorithm.lr", "0.0005", "(rlrun/algorithm/dqn.yaml)", "|", "0.01", "(override)"]
    report = json.loads(rlrun("diff", "one", "other", "--json").out)
    assert report["config"]["algorithm.lr"] == {
        "one": {"value": 5e-4, "set_by": "rlrun/algorithm/dqn.yaml"},
        "other": {"value": 0.01, "set_by": "override"},
    }


def test_who_set_a_key_is_kept_when_a_run_is_resumed(runs):
    package.resume("other", ["stop.env_steps=150"])
    assert package.diff("one", "other").config["algorithm.lr"].second.set_by == "override"


def test_damaged_and_hostile_files_leave_values_out(runs, rlrun):
    RunDir("one").summary.write_text("{")
    change(RunDir("one").manifest, set_by={"algorithm.lr": 3}, packages=[1])
    change(RunDir("other").manifest, set_by="much", host="\x1b[2J")
    outcome = rlrun("diff", "one", "other")
    assert (outcome.code, "\x1b" in outcome.out) == (0, False)

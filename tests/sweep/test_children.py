"""Processes that start at once."""

from __future__ import annotations

import importlib
import json
import os
import signal
from pathlib import Path

import pytest

from rlrun.sweep import children
from rlrun.sweep.local import accelerators


@pytest.fixture
def doing(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    return importlib.import_module("tests.sweep.doing")


def test_a_child_is_a_process_of_its_own_with_its_own_log(tmp_path, doing):
    log = tmp_path / "log.txt"
    log.write_text("before\n")
    begun = children.start(doing.describe, str(tmp_path / "about.json"), log=log, variables={"TOLD": "yes"})
    assert begun.wait(60) == 7
    about = json.loads((tmp_path / "about.json").read_text())
    assert about.pop("parent") != os.getpid()
    assert about == {"parent's threads": 1, "leads": True, "torch": True, "told": "yes"}
    assert log.read_text() == "before\nsaid\nwarned\n"


def test_it_ends_with_the_process_that_started_it(tmp_path, doing):
    begun = children.start(doing.wait, log=tmp_path / "log.txt")
    begun.held.close()  # as it is when that process is gone
    assert begun.wait(20) == -signal.SIGTERM


def test_what_they_are_forked_from_outlives_signals_to_its_group(tmp_path, doing):
    assert children.start(doing.describe, str(tmp_path / "about.json"), log=tmp_path / "log.txt").wait(60) == 7
    parent = json.loads((tmp_path / "about.json").read_text())["parent"]
    begun = children.start(doing.wait, log=tmp_path / "log.txt")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        os.kill(parent, number)
    begun.terminate()
    assert begun.wait(20) == -signal.SIGTERM  # of which nobody else could tell
    os.kill(parent, 0)


@pytest.mark.parametrize(("named", "expected"), [("2,0", ["2", "0"]), ("", []), ("GPU-a", ["GPU-a"])])
def test_accelerators_are_those_that_may_be_used(named, expected, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert accelerators() == expected

"""Processes that start at once."""

import fcntl
import importlib
import json
import os
import signal
import sys
from multiprocessing import spawn
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlrun.sweep import children
from rlrun.sweep.launchers.local import accelerators

from .test_sweeps import until


@pytest.fixture
def doing(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    return importlib.import_module("tests.sweep.doing")


def test_a_child_is_a_process_of_its_own_with_its_own_log(tmp_path, doing, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log = tmp_path / "log.txt"
    log.write_text("before\n")
    begun = children.start(doing.describe, str(tmp_path / "about.json"), log=log, variables={"TOLD": "yes"})
    assert begun.wait(60) == 7
    about = json.loads((tmp_path / "about.json").read_text())
    parent = about.pop("parent")
    assert parent != os.getpid()
    assert "PYTHONSAFEPATH=rlrun" in Path(f"/proc/{parent}/environ").read_text().split("\0")
    assert not {"", str(tmp_path)} & {*about.pop("path")}  # the folder may be that of a sweep
    assert [os.readlink(f"/proc/{parent}/fd/{number}") for number in (1, 2)] == [os.devnull] * 2
    expected = {"parent's threads": 1, "leads": True, "torch": True, "variable": "yes", "safe path": None}
    assert about == expected
    assert log.read_text() == "before\nsaid\nwarned\n"


@pytest.mark.parametrize("script", ["/a/script.py", None])  # without one, as in a shell, it has no name
def test_it_does_not_run_the_script_again_that_started_it(script, monkeypatch):
    main, seen = sys.modules["__main__"], []
    monkeypatch.setattr(main, "__file__", script, raising=False)
    if script is None:
        monkeypatch.delattr(main, "__file__")
    before = {**vars(main)}

    class Process:
        pid, sentinel = 1, None

        def __init__(self, **options):
            pass

        def start(self):
            seen.append(spawn.get_preparation_data("child").keys() & {"init_main_from_path", "init_main_from_name"})

    monkeypatch.setattr(children, "CONTEXT", SimpleNamespace(Process=Process))
    children.Child(print, paths=[])
    assert seen == [set()]
    assert vars(main) == before


def test_it_ends_with_the_process_that_started_it(tmp_path, doing):
    begun = children.start(doing.wait, log=tmp_path / "log.txt")
    begun.connection.close()  # as it is when that process is gone
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


def is_free(lock):
    with open(lock) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_one_that_leaves_is_not_asked_again_by_the_end_of_the_process_that_started_it(tmp_path, doing):
    begun = children.start(doing.leave, str(tmp_path / "hears"), log=tmp_path / "log.txt")
    until((tmp_path / "hears").exists)
    begun.terminate()
    begun.connection.close()
    assert begun.wait(20) == 1


def test_one_that_is_killed_takes_along_what_it_forked(tmp_path, doing):
    lock = tmp_path / "lock"
    begun = children.start(doing.fork, str(lock), log=tmp_path / "log.txt")
    until(lambda: lock.exists() and lock.read_text() == "held")
    begun.kill()
    assert begun.wait(20) == -signal.SIGKILL
    until(lambda: is_free(lock))


@pytest.mark.parametrize(("named", "expected"), [("2,0", ["2", "0"]), ("", []), ("GPU-a", ["GPU-a"])])
def test_accelerators_are_those_that_may_be_used(named, expected, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert accelerators() == expected

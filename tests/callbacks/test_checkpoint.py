"""The checkpointer: nothing half written, nothing lost, nothing kept too long."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from rlrun import storage
from rlrun.callback import Stop
from rlrun.callbacks.checkpoint import Checkpointer
from rlrun.errors import ConfigError, RlrunError, RunDirError
from rlrun.memory import Table
from rlrun.rundir import RunDir


class Counter:
    """A part whose state is one number and one tensor."""

    def __init__(self):
        self.count = 0

    def state_dict(self):
        return {"count": self.count, "weight": torch.full((3,), float(self.count))}


def begun(tmp_path, every=100, parts=None, update=0, state=None, **arguments):
    run = RunDir.claim(tmp_path / "run") if not (tmp_path / "run").exists() else RunDir(tmp_path / "run")
    checkpointer = Checkpointer(every, **arguments)
    counter = Counter()
    if state is not None:
        checkpointer.load_state_dict(state)
    checkpointer.begin_training(parts or {"counter": counter}, run, update)
    return checkpointer, run, counter


def steps(run):
    return [int(path.name.split("-")[0]) for path in run.checkpoint_dirs()]


def fail(*args, **kwargs):
    raise OSError(28, "No space left on device")


def test_first_boundary_at_or_after_each_interval_is_saved(tmp_path):
    checkpointer, run, _ = begun(tmp_path, keep_last=None)
    for update in range(1, 15):
        checkpointer.end_cycle(update, step=update * 32)
    assert [path.name for path in run.checkpoint_dirs()] == [
        "0000000128-0000000004",
        "0000000224-0000000007",
        "0000000320-0000000010",
        "0000000416-0000000013",
    ]
    assert run.checkpoint("latest").name == "0000000416-0000000013"


def test_without_environment_updates_name_the_folder(tmp_path):
    checkpointer, run, _ = begun(tmp_path, every=3)
    for update in range(1, 5):
        checkpointer.end_cycle(update)
    assert run.checkpoint(3).name == "0000000003-0000000003"


def test_time_makes_a_checkpoint_due(tmp_path, monkeypatch):
    now = iter([0.0, 5.0, 61.0, 61.0, 62.0])
    monkeypatch.setattr("rlrun.callbacks.checkpoint.time.monotonic", lambda: next(now))
    checkpointer, run, _ = begun(tmp_path, every=None, seconds=60)
    for update in (1, 2, 3):
        checkpointer.end_cycle(update)
    assert steps(run) == [2]


def test_saved_state_is_that_of_its_step(tmp_path):
    checkpointer, run, counter = begun(tmp_path, every=2, keep_last=None)
    for update in range(1, 7):
        counter.count = update
        checkpointer.end_cycle(update)
    for step in (2, 4, 6):
        state = storage.load(run.checkpoint(step))["counter"]
        assert state["count"] == step
        assert torch.equal(state["weight"], torch.full((3,), float(step)))


def test_resumed_rhythm_is_kept(tmp_path):
    checkpointer, run, _ = begun(tmp_path, keep_last=None, state={"axis": 150, "update": 15, "best": None})
    for step in (160, 190, 210, 290, 300):
        checkpointer.end_cycle(step // 10, step=step)
    assert steps(run) == [210, 300]


def test_last_ones_and_the_best_are_kept(tmp_path):
    checkpointer, run, _ = begun(tmp_path, every=10, keep_last=2)
    for update in range(10, 70, 10):
        if update == 20:
            checkpointer.mark_best(update, update)
        checkpointer.end_cycle(update)
    assert steps(run) == [20, 50, 60]
    assert run.checkpoint("best").name.startswith("0000000020")


def test_best_is_saved_when_its_update_ends(tmp_path):
    checkpointer, run, _ = begun(tmp_path, every=100)
    checkpointer.mark_best(42, 7)
    assert steps(run) == []
    checkpointer.end_cycle(7, step=42)
    assert run.checkpoint("best") == run.checkpoint("latest") == run.checkpoint(42)
    checkpointer.end_cycle(8, step=48)
    assert steps(run) == [42]


def test_best_of_a_saved_step_is_pointed_to_at_once(tmp_path):
    checkpointer, run, _ = begun(tmp_path, every=10)
    checkpointer.end_cycle(10)
    checkpointer.mark_best(10, 10)
    assert run.checkpoint("best") == run.checkpoint(10)


def test_old_best_goes_when_a_better_one_came(tmp_path):
    checkpointer, run, _ = begun(tmp_path, every=10, keep_last=1)
    for update in (10, 20, 30):
        checkpointer.mark_best(update, update)
        checkpointer.end_cycle(update)
    assert steps(run) == [30]


@pytest.mark.parametrize("error", [None, Stop("SIGTERM")])
def test_end_in_order_is_saved_once(tmp_path, error):
    checkpointer, run, _ = begun(tmp_path, every=10)
    for update in range(1, 14):
        checkpointer.end_cycle(update)
    checkpointer.end_training(error, update=13)
    assert steps(run) == [10, 13]
    before = run.checkpoint(13).stat().st_mtime_ns
    checkpointer.end_training(error, update=13)
    assert run.checkpoint(13).stat().st_mtime_ns == before


def test_no_checkpoint_is_made_after_an_error(tmp_path):
    checkpointer, run, _ = begun(tmp_path)
    checkpointer.end_training(ValueError("inside an update"), update=13)
    assert steps(run) == []


def test_stop_amidst_a_warm_up_saves_nothing(tmp_path):
    checkpointer, run, _ = begun(tmp_path, update=500)
    checkpointer.end_training(Stop("SIGTERM"), update=500, step=700)
    assert steps(run) == []


def test_skipped_parts_are_left_out_with_what_is_beneath(tmp_path):
    parts = {"memory": Counter(), "memory.sampler": Counter(), "memory_of_mine": Counter()}
    checkpointer, run, _ = begun(tmp_path, parts=parts, skip=["memory"])
    checkpointer.end_training(None, update=1)
    assert list(storage.load(run.checkpoint())) == ["memory_of_mine"]


def table():
    made = Table(columns={"observation": {"shape": [1]}, "reward": {}}, length=8)
    made.add(None, {"observation": np.zeros((1, 1)), "reward": np.ones(1)})
    made.close(None, np.zeros((1, 1)))
    return made


@pytest.mark.parametrize(("memory", "saved"), [(True, {"counter", "memory", "replay.goals"}), (False, {"counter"})])
def test_rows_of_all_tables_are_saved_where_wanted(tmp_path, memory, saved):
    parts = {"counter": Counter(), "memory": table(), "replay.goals": table()}
    checkpointer, run, _ = begun(tmp_path, parts=parts, memory=memory)
    checkpointer.end_training(None, update=1)
    assert set(storage.load(run.checkpoint())) == saved


def test_rows_are_not_read_by_who_wants_other_parts(tmp_path):
    checkpointer, run, _ = begun(tmp_path, parts={"counter": Counter(), "memory": table()})
    checkpointer.end_training(None, update=1)
    (run.checkpoint() / "tensors.1.safetensors").write_bytes(b"damage")
    assert storage.load(run.checkpoint(), ["counter"])["counter"]["count"] == 0
    with pytest.raises(RunDirError, match=r"tensors\.1\.safetensors is damaged"):
        storage.load(run.checkpoint())


def left(tmp_path, best, **arguments):
    """Leave a run with checkpoints 10, 20 and 30, the best of which is 20; return the state at `best`."""
    checkpointer, run, _ = begun(tmp_path, 10, **arguments)
    states = {}
    for update in (10, 20, 30):
        if update in best:
            checkpointer.mark_best(update, update)
        checkpointer.end_cycle(update)
        states[update] = checkpointer.state_dict()
    return run, states


def test_a_resumed_run_points_to_what_it_goes_on_from(tmp_path):
    run, states = left(tmp_path, best=(10, 20))
    begun(tmp_path, update=20, state=states[20])
    assert (run.checkpoint("latest"), run.checkpoint("best")) == (run.checkpoint(20), run.checkpoint(20))
    begun(tmp_path, update=10, state=states[10])
    assert (run.checkpoint("latest"), run.checkpoint("best")) == (run.checkpoint(10), run.checkpoint(10))


def test_a_best_from_beyond_the_resume_is_forgotten(tmp_path):
    run, states = left(tmp_path, best=(30,))
    begun(tmp_path, update=20, state=states[20])
    with pytest.raises(RunDirError, match="has no checkpoint 'best'"):
        run.checkpoint("best")


def test_a_resumed_run_does_not_save_again_what_it_came_from(tmp_path):
    run, states = left(tmp_path, best=())
    checkpointer, _, counter = begun(tmp_path, update=30, state=states[30])
    counter.count = 5
    checkpointer.end_training(Stop("30 of 30 updates"), update=30)
    assert storage.load(run.checkpoint(30))["counter"]["count"] == 0


def test_without_directory_nothing_is_saved():
    checkpointer = Checkpointer(1)
    checkpointer.begin_training({"counter": Counter()}, None)
    checkpointer.end_cycle(1)
    checkpointer.mark_best(1, 1)
    checkpointer.end_training(None, update=1)
    assert checkpointer.state_dict() == {"axis": 1, "update": 1, "best": (1, 1)}


def test_keeping_none_is_refused():
    with pytest.raises(ConfigError, match=r"checkpoint\.keep_last must be at least 1"):
        Checkpointer(1, keep_last=0)


@pytest.mark.parametrize("boundary", ["rename", "replace", "fsync"])
def test_failed_write_keeps_the_previous_checkpoint(tmp_path, monkeypatch, boundary):
    checkpointer, run, counter = begun(tmp_path, every=1)
    checkpointer.end_cycle(1)
    counter.count = 5
    with monkeypatch.context() as broken:
        broken.setattr(os, boundary, fail)
        with pytest.raises(RlrunError, match="cannot be written: No space left on device"):
            checkpointer.end_cycle(2)
    assert storage.load(run.checkpoint("latest"))["counter"]["count"] == 0
    assert not [path for path in run.checkpoints.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("writes", range(12))
def test_process_killed_at_any_write_leaves_a_good_latest(tmp_path, writes):
    checkpointer, run, counter = begun(tmp_path, every=1, keep_last=1)
    checkpointer.end_cycle(1)
    child = os.fork()
    if child == 0:
        left = iter(range(writes))
        for name in ("fsync", "rename", "replace", "rmdir"):
            call = getattr(os, name)
            setattr(os, name, lambda *a, call=call, **k: call(*a, **k) if next(left, None) is not None else os._exit(9))
        counter.count = 5
        checkpointer.end_cycle(2)
        os._exit(0)
    os.waitpid(child, 0)
    assert storage.load(run.checkpoint("latest"))["counter"]["count"] in (0, 5)
    assert all(storage.load(path) for path in run.checkpoint_dirs())
    begun(tmp_path)
    assert not [path for path in run.checkpoints.iterdir() if path.name.startswith(".") and path.is_dir()]


def test_checkpoints_from_before_a_resume_push_nothing_out(tmp_path):
    first, run, _ = begun(tmp_path, every=10, keep_last=2)
    for update in (10, 20, 30, 40):
        first.end_cycle(update)
    second, _, _ = begun(tmp_path, 5, update=30, state={"axis": 30, "update": 30, "best": None}, keep_last=2)
    second.end_cycle(35)
    assert steps(run) == [30, 35, 40]
    second.end_cycle(40)
    assert steps(run) == [35, 40]


def test_checkpoint_of_the_same_step_is_replaced(tmp_path):
    first, run, _ = begun(tmp_path, every=10)
    first.end_cycle(10)
    (run.checkpoint(10) / storage.STATE).write_text("damage")
    second, _, counter = begun(tmp_path, every=10)
    counter.count = 7
    second.end_cycle(10)
    assert storage.load(run.checkpoint(10))["counter"]["count"] == 7

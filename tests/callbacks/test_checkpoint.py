"""The checkpointer: nothing half written, nothing lost, nothing kept too long."""

import threading
from concurrent.futures import wait
from datetime import datetime
from functools import partial

import numpy as np
import pytest
from tests.checkpointing.test_crashes import Counter

from rlrun import checkpointing as storage
from rlrun.callbacks.checkpointer import Checkpointer
from rlrun.core.errors import ConfigError, RlrunError, RunDirError
from rlrun.memory import Table
from rlrun.runs.directory import RunDir
from rlrun.training.callback import Stop


class Patient(Checkpointer):
    """Waits for the disk after every update."""

    def end_cycle(self, update, step=None):
        super().end_cycle(update, step)
        self.wait()


def begun(tmp_path, every=100, parts=None, update=0, state=None, kind=Patient, **arguments):
    run = RunDir.claim(tmp_path / "run") if not (tmp_path / "run").exists() else RunDir(tmp_path / "run")
    checkpointer = kind(every, **arguments)
    counter = Counter()
    if state is not None:
        checkpointer.load_state_dict(state)
    checkpointer.begin_training(parts or {"counter": counter, "checkpointer": checkpointer}, run, update)
    return checkpointer, run, counter


def steps(run):
    return [int(path.name.split("-")[0]) for path in run.checkpoint_dirs()]


def test_saves_at_or_after_each_interval(tmp_path):
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


def test_time_makes_a_checkpoint_due(tmp_path, monkeypatch):
    now = iter([0.0, 5.0, 61.0, 61.0, 62.0])
    monkeypatch.setattr("rlrun.callbacks.checkpointer.time.monotonic", lambda: next(now))
    checkpointer, run, _ = begun(tmp_path, every=None, seconds=60)
    for update in (1, 2, 3):
        checkpointer.end_cycle(update)
    assert steps(run) == [2]


@pytest.mark.parametrize(
    ("options", "best", "kept"),
    [
        ({"keep_last": 2}, [20], [20, 50, 60]),
        ({"keep_last": 1}, [10, 20, 40], [40, 60]),
        ({"keep_last": 1, "keep_best": 2}, [10, 20, 40], [20, 40, 60]),
    ],
)
def test_newest_and_best_are_kept(options, best, kept, tmp_path):
    checkpointer, run, _ = begun(tmp_path, every=10, **options)
    for update in range(10, 70, 10):
        if update in best:
            checkpointer.mark_best(update, update)
        checkpointer.end_cycle(update)
    assert steps(run) == kept
    assert run.checkpoint("best") == run.checkpoint(best[-1])


def test_best_is_saved_after_its_update(tmp_path):
    checkpointer, run, _ = begun(tmp_path, every=100)
    checkpointer.mark_best(42, 7)
    assert steps(run) == []
    checkpointer.end_cycle(7, step=42)
    assert run.checkpoint("best") == run.checkpoint("latest") == run.checkpoint(42)
    checkpointer.end_cycle(8, step=48)
    assert steps(run) == [42]
    checkpointer.end_cycle(9, step=100)
    checkpointer.mark_best(100, 9)  # of a saved step: the pointer moves at once
    assert run.checkpoint("best") == run.checkpoint(100)


@pytest.mark.parametrize("earlier", [True, False])
def test_resume_forgets_best_of_the_end(earlier, tmp_path):
    checkpointer, run, _ = begun(tmp_path, every=100, keep_last=1)
    if earlier:
        checkpointer.mark_best(10, 10)
        checkpointer.end_cycle(10)
    checkpointer.mark_best(15, 15, final=True)
    checkpointer.end_training(None, update=15)
    assert run.checkpoint("best") == run.checkpoint(15)
    state = storage.load(run.checkpoint(15), ["checkpointer"])["checkpointer"]
    assert state == {"axis": 15, "update": 15, "best": [(10, 10)] if earlier else []}
    begun(tmp_path, update=15, state=state)
    if earlier:
        assert run.checkpoint("best") == run.checkpoint(10)
    else:
        with pytest.raises(RunDirError, match="has no checkpoint 'best'"):
            run.checkpoint("best")


def test_manifest_has_evaluation_and_time(tmp_path):
    checkpointer, run, _ = begun(tmp_path)
    checkpointer.evaluation = {"mean_return": 7.5, "std_return": 0.5, "episodes": 3, "env_steps": 32}
    checkpointer.end_training(None, update=4, step=40)
    note = storage.read_manifest(run.checkpoint())
    assert (note.env_steps, note.updates, note.evaluation) == (40, 4, checkpointer.evaluation)
    assert datetime.fromisoformat(note.created).tzinfo is not None


@pytest.mark.parametrize("error", [None, Stop("SIGTERM")])
def test_orderly_end_is_saved_once(tmp_path, error):
    checkpointer, run, _ = begun(tmp_path, every=10)
    for update in range(1, 14):
        checkpointer.end_cycle(update)
    checkpointer.end_training(error, update=13)
    assert steps(run) == [10, 13]
    before = run.checkpoint(13).stat().st_mtime_ns
    checkpointer.end_training(error, update=13)
    assert run.checkpoint(13).stat().st_mtime_ns == before


RESUMED = {"axis": 600, "update": 500, "best": []}


@pytest.mark.parametrize(
    ("update", "step", "state", "saved"),
    [(0, 700, None, [700]), (500, 700, RESUMED, [700]), (500, None, RESUMED, []), (500, 600, RESUMED, [])],
)
def test_stop_after_steps_is_saved(update, step, state, saved, tmp_path):
    checkpointer, run, _ = begun(tmp_path, update=update, state=state)
    checkpointer.end_training(Stop("SIGTERM"), update=update, step=step)
    assert steps(run) == saved


def table():
    memory = Table(columns={"observation": {"shape": [1]}, "reward": {}}, length=8)
    memory.add(None, {"observation": np.zeros((1, 1)), "reward": np.ones(1)})
    memory.close(None, np.zeros((1, 1)))
    return memory


@pytest.mark.parametrize(
    ("options", "lost"),
    [
        ({}, []),
        ({"memory": False}, ["memory", "memory.goals"]),
        ({"parts": ["memory"]}, ["memory_of_mine"]),
    ],
)
def test_unwanted_parts_are_left_out(tmp_path, options, lost):
    parts = {"memory": table(), "memory.goals": table(), "memory.x": Counter(), "memory_of_mine": Counter()}
    checkpointer, run, _ = begun(tmp_path, parts=parts, kind=partial(Patient, **options))
    checkpointer.end_training(None, update=1)
    assert storage.load(run.checkpoint()).keys() == parts.keys() - set(lost)


@pytest.mark.parametrize(
    ("best", "update", "pointed"), [((10, 20), 20, 20), ((10, 20), 10, 10), ((30,), 20, None), ((), 30, None)]
)
def test_resumed_run_restores_the_pointers(best, update, pointed, tmp_path):
    checkpointer, run, _ = begun(tmp_path, 10)
    states = {}
    for now in (10, 20, 30):
        if now in best:
            checkpointer.mark_best(now, now)
        checkpointer.end_cycle(now)
        states[now] = checkpointer.state_dict()
    resumed, _, counter = begun(tmp_path, update=update, state=states[update])
    assert run.checkpoint("latest") == run.checkpoint(update)
    if pointed is None:
        with pytest.raises(RunDirError, match="has no checkpoint 'best'"):
            run.checkpoint("best")
    else:
        assert run.checkpoint("best") == run.checkpoint(pointed)
    counter.count = 5
    resumed.end_training(Stop("enough"), update=update)  # which does not save it again
    assert storage.load(run.checkpoint(update))["counter"]["count"] == 0


def test_without_directory_nothing_is_saved():
    checkpointer = Checkpointer(1)
    checkpointer.begin_training({"counter": Counter()}, None)
    checkpointer.end_cycle(1)
    checkpointer.mark_best(1, 1)
    checkpointer.end_training(None, update=1)
    assert checkpointer.state_dict() == {"axis": 1, "update": 1, "best": [(1, 1)]}


def test_keep_last_zero_is_refused():
    with pytest.raises(ConfigError, match=r"checkpoint\.keep_last must be at least 1"):
        Checkpointer(1, keep_last=0)


def test_later_checkpoints_are_replaced_after_resume(tmp_path):
    first, run, _ = begun(tmp_path, every=10, keep_last=2)
    for update in (10, 20, 30, 40):
        first.end_cycle(update)
    second, _, _ = begun(tmp_path, 5, update=30, state={"axis": 30, "update": 30, "best": []}, keep_last=2)
    second.end_cycle(35)
    assert steps(run) == [30, 35, 40]
    second.end_cycle(40)
    assert steps(run) == [35, 40]


def test_checkpoint_of_same_step_is_replaced(tmp_path):
    first, run, _ = begun(tmp_path, every=10)
    first.end_cycle(10)
    (run.checkpoint(10) / storage.STATE).write_text("damage")
    second, _, counter = begun(tmp_path, every=10)
    counter.count = 7
    second.end_cycle(10)
    assert storage.load(run.checkpoint(10))["counter"]["count"] == 7


class Slow:
    """Delays every write of states until `go` is set; then raises `error`, if it is set."""

    def __init__(self, monkeypatch, *, go=False):
        self.go, self.error = threading.Event(), None
        if go:
            self.go.set()
        write = storage.write
        monkeypatch.setattr(storage, "write", lambda *args: (self.go.wait(), self.fail(), write(*args)))

    def fail(self):
        if self.error is not None:
            raise self.error


def test_consistent_state_is_written_during_training(tmp_path, monkeypatch):
    disk, memory = Slow(monkeypatch), table()
    parts = {"counter": Counter(), "memory": memory}
    checkpointer, run, _ = begun(tmp_path, every=1, parts=parts, kind=Checkpointer)
    checkpointer.end_cycle(1)
    then = storage.digest(memory.state_dict())
    parts["counter"].count = 5
    memory.add(None, {"observation": np.full((1, 1), 9), "reward": np.ones(1)})
    memory.storage.put("reward", [0], 7)
    assert steps(run) == []
    disk.go.set()
    checkpointer.wait()
    states = storage.load(run.checkpoint("latest"))
    assert states["counter"]["count"] == 0
    assert storage.digest(states["memory"]) == then
    checkpointer.end_training(None, update=2)
    assert storage.digest(storage.load(run.checkpoint("latest"))["memory"]) == storage.digest(memory.state_dict())


def test_save_waits_for_the_previous_one(tmp_path, monkeypatch):
    disk = Slow(monkeypatch)
    checkpointer, run, counter = begun(tmp_path, every=1, kind=Checkpointer)
    checkpointer.end_cycle(1)
    counter.count = 2
    threading.Timer(0.05, disk.go.set).start()
    checkpointer.end_cycle(2)
    assert steps(run)[0] == 1
    checkpointer.end_training(None, update=2)
    assert [storage.load(run.checkpoint(step))["counter"]["count"] for step in (1, 2)] == [0, 2]


FULL = "there cannot be written: No space left on device"


@pytest.mark.parametrize("at_end", [False, True])
def test_failed_write_ends_the_run(at_end, tmp_path, monkeypatch):
    disk = Slow(monkeypatch, go=True)
    checkpointer, run, _ = begun(tmp_path, every=10, kind=Checkpointer)
    checkpointer.end_cycle(10)
    checkpointer.wait()
    disk.error = RlrunError(FULL)
    checkpointer.end_cycle(20)
    wait([checkpointer._writing])
    with pytest.raises(RlrunError, match="No space left on device"):
        checkpointer.end_training(None, update=20) if at_end else checkpointer.end_cycle(21)
    assert run.checkpoint("latest") == run.checkpoint(10)


@pytest.mark.parametrize("damage", ["gone", "flipped", "cut"])
def test_damaged_segment_is_saved_again(tmp_path, damage, caplog, monkeypatch):
    monkeypatch.setattr("rlrun.checkpointing.segments.LONGEST", 1)  # each save merges what was there
    parts = {"memory": table()}
    checkpointer, run, _ = begun(tmp_path, every=1, parts=parts)
    checkpointer.end_cycle(1)
    (segment,) = (run.checkpoints / "segments").iterdir()
    data = segment.read_bytes()
    segment.unlink()
    if damage != "gone":
        segment.write_bytes(data[:-1] + bytes([data[-1] ^ 1]) if damage == "flipped" else data[:-1])
    parts["memory"].add(None, {"observation": np.ones((1, 1)), "reward": np.ones(1)})
    checkpointer.end_cycle(2)
    checkpointer.end_cycle(3)
    checkpointer.end_training(None, update=3)
    assert "is damaged" in caplog.text
    assert storage.verify(run.checkpoint("latest")) == []
    back = storage.load(run.checkpoint("latest"))["memory"]
    assert storage.digest(back) == storage.digest(parts["memory"].state_dict())


@pytest.mark.parametrize("best", [False, True])
def test_last_checkpoint_replaces_missing_segment(best, tmp_path, caplog):
    memory = table()
    checkpointer, run, _ = begun(tmp_path, 10, parts={"memory": memory}, kind=Checkpointer)
    checkpointer.end_cycle(10)
    checkpointer.wait()
    for segment in (run.checkpoints / "segments").iterdir():
        segment.unlink()
    memory.add(None, {"observation": np.ones((1, 1)), "reward": np.ones(1)})
    if best:
        checkpointer.mark_best(13, 13)
    checkpointer.end_training(None, update=13)
    assert "is damaged" in caplog.text
    assert run.checkpoint("latest") == run.checkpoint(13)
    assert storage.verify(run.checkpoint(13)) == []
    assert checkpointer.state_dict()["best"] == ([(13, 13)] if best else [])
    assert not best or run.checkpoint("best") == run.checkpoint(13)


def test_unsavable_last_checkpoint_is_reported(tmp_path, monkeypatch):
    disk = Slow(monkeypatch, go=True)
    disk.error = RunDirError("a segment is damaged")
    checkpointer, _, _ = begun(tmp_path, every=10, kind=Checkpointer)
    with pytest.raises(RlrunError, match="the last checkpoint cannot be saved"):
        checkpointer.end_training(None, update=13)


def test_unsaved_best_is_not_counted(tmp_path, monkeypatch):
    disk = Slow(monkeypatch, go=True)
    checkpointer, run, _ = begun(tmp_path, every=10, kind=Checkpointer, keep_last=1)
    checkpointer.mark_best(10, 10)
    checkpointer.end_cycle(10)
    checkpointer.wait()
    disk.error = RunDirError("a segment is damaged")
    checkpointer.mark_best(20, 20)
    checkpointer.end_cycle(20)
    wait([checkpointer._writing])
    disk.error = None
    checkpointer.end_cycle(21)  # finds the failure, and saves again
    checkpointer.wait()
    assert (run.checkpoint("best"), steps(run)) == (run.checkpoint(10), [10, 21])
    assert storage.load(run.checkpoint(21))["checkpointer"]["best"] == [(10, 10)]


def test_records_are_synced_before_their_checkpoint(tmp_path, monkeypatch):
    checkpointer, run, _ = begun(tmp_path, every=10)
    run.metrics.write_text("{}\n")
    seen = []
    monkeypatch.setattr("rlrun.callbacks.checkpointer.sync", lambda path: seen.append((path, steps(run))))
    checkpointer.end_cycle(10)
    assert seen == [(run.metrics, [])]


def test_too_many_rows_are_written_synchronously(tmp_path, monkeypatch):
    monkeypatch.setattr("rlrun.checkpointing.states.main_memory", lambda: 1)
    checkpointer, run, _ = begun(tmp_path, every=1, parts={"memory": table()}, kind=Checkpointer)
    checkpointer.end_cycle(1)
    monkeypatch.undo()
    assert storage.verify(run.checkpoint("latest")) == []

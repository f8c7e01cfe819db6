"""The run directory: made atomically, claimed carefully, read with clear errors."""

import errno
import json
import os
import re
import signal
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.identical import stamps

from rlrun.callbacks.checkpointer import point
from rlrun.callbacks.logging.sinks import Jsonl
from rlrun.core import files
from rlrun.core.errors import LostRun, RlrunError, RunDirError
from rlrun.runs import lock as locks
from rlrun.runs import manifest
from rlrun.runs.directory import RunDir, runs_beneath
from rlrun.runs.heartbeat import keep_fresh, lock_run, trace_of

PIDS = ("7", None, 0, -1, 10**30, 1.5, [1])


def started(path: Path) -> RunDir:
    run = RunDir.claim(path)
    run.start(config="seed: 3\n", overrides=["seed=3", "env=cartpole"], manifest={"seed": 3})
    return run


def with_checkpoints(path: Path, *names: str) -> RunDir:
    run = started(path)
    for name in names:
        (run.checkpoints / name).mkdir()
    (run.checkpoints / "latest").write_text(names[-1] + "\n")
    return run


def test_name_holds_algorithm_env_date_and_seed(tmp_path):
    run = RunDir.create(tmp_path / "runs", algorithm="sac", env="ALE/Pong-v5", seed=3)
    assert run.path.parent == tmp_path / "runs" / "sac-ALE-Pong-v5"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_s3", run.path.name)
    assert run.checkpoints.is_dir()


def test_runs_of_one_second_differ(tmp_path):
    runs = [RunDir.create(tmp_path, algorithm="ppo", env="x", seed=0) for _ in range(4)]
    assert len({run.path for run in runs}) == 4
    assert any(run.path.name.endswith("_s0-2") for run in runs)


def test_unwritable_place_leaves_nothing(tmp_path, monkeypatch):
    make = Path.mkdir

    def refuse(self, *args, **kwargs):
        if self.name == "checkpoints":
            raise PermissionError(13, "Permission denied")
        make(self, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(RunDirError, match="not writable: Permission denied"):
        RunDir.claim(tmp_path / "a" / "run")
    assert list(tmp_path.iterdir()) == []


def test_discard_removes_only_its_own(tmp_path):
    run = RunDir.create(tmp_path / "runs", algorithm="sac", env="x", seed=0)
    run.start(config="", overrides=[], manifest={})
    run.discard()
    assert list(tmp_path.iterdir()) == []
    neighbor = RunDir.create(tmp_path, algorithm="sac", env="x", seed=0)
    RunDir.create(tmp_path, algorithm="sac", env="x", seed=1).discard()
    assert neighbor.path.is_dir()
    (tmp_path / "mine").mkdir()
    RunDir.claim(tmp_path / "mine").discard()
    assert list((tmp_path / "mine").iterdir()) == []
    opened = started(tmp_path / "run")
    RunDir.open(opened.path).discard()
    assert opened.config.read_text() == "seed: 3\n"


def test_open_names_the_nearest_run(tmp_path):
    run = started(tmp_path / "runs" / "sac-x" / "one")
    (tmp_path / "empty").mkdir()
    for folder, message in (
        (tmp_path / "runs", re.escape(str(run.path))),
        (run.checkpoints, re.escape(f"did you mean '{run.path}'?")),
        (tmp_path / "none", "does not exist$"),
        (f"{run.path}@best", re.escape(f"(did you mean '{run.path}' with --checkpoint best?)")),
        (tmp_path / "empty", r"is not a run directory.*manifest\.json$"),
    ):
        with pytest.raises(RunDirError, match=message):
            RunDir.open(folder)


def test_checkpoint_is_found_by_step_and_pointer(tmp_path):
    run = with_checkpoints(tmp_path / "run", "0000000500-0000000100", "0000001000-0000000200", "0000001000-0000000300")
    assert run.checkpoint("latest").name == "0000001000-0000000300"
    assert run.checkpoint(500).name == "0000000500-0000000100"
    assert run.checkpoint("1_000").name == "0000001000-0000000300"


def test_missing_checkpoint_lists_those_there_are(tmp_path):
    run = with_checkpoints(tmp_path / "run", "0000000500-0000000100")
    with pytest.raises(RunDirError, match="has no checkpoint 'best'; it has latest, 500"):
        run.checkpoint("best")
    with pytest.raises(RunDirError, match="has no checkpoint '7'"):
        run.checkpoint("7")
    for pointer in (b"0000000900-0000000180\n", b"../checkpoints/0000000500-0000000100", b"/etc", b"", b"\xff\x00"):
        (run.checkpoints / "latest").write_bytes(pointer)
        with pytest.raises(RunDirError, match=r"has no checkpoint 'latest'; it has 500$"):
            run.checkpoint("latest")
    with (run.checkpoints / "latest").open("wb") as file:
        file.truncate(1 << 40)  # from elsewhere
    with pytest.raises(RunDirError, match=r"has no checkpoint 'latest'; it has 500$"):
        run.checkpoint("latest")
    assert run.newest_first() == [run.checkpoint(500)]  # a run goes on without it
    with pytest.raises(RunDirError, match=r"has no checkpoint '7'; it has 500$"):
        run.checkpoint(7)


def forked(act) -> int:
    """Call a function in another process, whose exit code says whether it was refused; return its number."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            act()
            code = 0
        except RunDirError:
            code = 2
        finally:
            os._exit(code)
    return child


def worked_on(run: RunDir) -> int:
    """Let another process work on a run until it is killed; return its number."""
    run.write_status("stopped")
    ready, theirs = os.pipe()

    def work():
        with lock_run(run):
            os.write(theirs, b"!")
            time.sleep(60)

    child = forked(work)
    assert os.read(ready, 1) == b"!"
    return child


def end(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def rewrite(path: Path, **changes) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def ago(seconds: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat(timespec="seconds")


def unlockable(handle):
    raise OSError(errno.ENOLCK, "No locks available")


DAY = 86_400.0
NOBODY = 2**31 - 1  # no process has this number


@pytest.mark.parametrize("age", [0, DAY, -DAY])
def test_who_holds_the_lock_is_at_work_whatever_its_heartbeat(age, tmp_path):
    run = started(tmp_path / "run")
    child = worked_on(run)
    rewrite(run.status, heartbeat=ago(age))
    assert run.read_status()["status"] == "running"
    with pytest.raises(RunDirError, match=rf"process {child} on \S+ works on it, .*; end that process$"):
        lock_run(run).__enter__()
    end(child)
    assert run.read_status()["status"] == "interrupted"
    with lock_run(run):
        assert run.read_status()["status"] == "running"


def test_without_locks_a_process_is_at_work_with_its_number_its_start_and_its_machine(tmp_path, monkeypatch):
    run = started(tmp_path / "run")
    monkeypatch.setattr(locks, "hold", unlockable)
    child = worked_on(run)
    rewrite(run.status, heartbeat=ago(DAY))
    assert run.read_status()["status"] == "running"
    rewrite(run.status, heartbeat=ago(0))
    for changes in ({"started": f"{os.readlink(locks.PROCESSES)} 7"}, {"pid": NOBODY}, {"pid": "../self"}):
        signature = run.lock.read_text()
        rewrite(run.lock, **changes)
        assert run.read_status()["status"] == "interrupted"
        run.lock.write_text(signature)
    rewrite(run.lock, boot="another")  # whose numbers mean nothing here: the heartbeat counts
    assert run.read_status()["status"] == "running"
    end(child)


@pytest.mark.parametrize(("age", "status"), [(0, "running"), (DAY, "interrupted"), (-DAY, "interrupted")])
def test_of_a_process_elsewhere_the_heartbeat_counts_and_none_of_the_future(age, status, tmp_path):
    run = started(tmp_path / "run")
    end(worked_on(run))
    rewrite(run.lock, boot="another")
    rewrite(run.status, host="elsewhere", heartbeat=ago(age))
    assert run.read_status()["status"] == status
    if status == "running":
        with pytest.raises(RunDirError, match=r"; end that process, or, if it is gone, wait until \d{4}-\S+$"):
            lock_run(run).__enter__()
    else:
        with lock_run(run):
            assert json.loads(run.lock.read_text())["pid"] == os.getpid()


def test_a_process_that_is_forked_holds_no_lock_of_its_parents(tmp_path):
    run = started(tmp_path / "run")
    run.write_status("stopped")
    with lock_run(run):
        child = forked(lambda: time.sleep(60))
    with lock_run(run):
        pass
    end(child)


def test_a_process_that_lost_its_run_writes_nothing_more(tmp_path):
    run, sink = started(tmp_path / "run"), Jsonl()
    run.write_status("stopped")
    with lock_run(run):
        sink.open(run, {}, records=0, axis=0)
        sink.write({"env_steps": 1})
        rewrite(run.lock, token="another", pid=77, host="elsewhere")  # as one that could not see the lock
        before = stamps(run.path)
        lost = r"run was taken over by process 77 on elsewhere; this process stops, and writes nothing more to it$"
        for write in (
            lambda: sink.write({"env_steps": 2}),
            lambda: point(run, "latest", "0000000001-0000000001"),
            lambda: keep_fresh(run).__enter__(),
        ):
            with pytest.raises(LostRun, match=lost):
                write()
        assert stamps(run.path) == before
    assert run.read_status()["status"] == "interrupted"  # whoever has it now holds no lock in this test


def test_heartbeat_renews_the_status(tmp_path):
    run = started(tmp_path / "run")
    with keep_fresh(run, seconds=0.01):
        run.status.unlink()
        for _ in range(500):
            if run.status.exists():
                break
            time.sleep(0.01)
        assert json.loads(run.status.read_text())["status"] == "running"
    run.write_status("completed")
    assert run.read_status()["status"] == "completed"


@pytest.mark.parametrize(
    "wrong",
    [
        *("", "[]", "7", "{}", '{"status": "running"}', '{"status": "dancing"}', "\xff"),
        *({"pid": pid} for pid in PIDS),
        *({"heartbeat": "soon"}, {"heartbeat": None}),
    ],
    ids=str,
)
def test_damaged_status_is_an_interruption(wrong, tmp_path):
    run = started(tmp_path / "run")
    run.write_status("running")
    status = {**json.loads(run.status.read_text()), "pid": os.getppid()}
    run.status.write_text(wrong if isinstance(wrong, str) else json.dumps(status | wrong))
    assert run.read_status()["status"] == "interrupted"


def test_of_two_that_take_over_at_once_one_is_refused(tmp_path):
    run = started(tmp_path / "run")
    run.write_status("stopped")
    ready, go = os.pipe()
    trace = trace_of(run)

    def take_over():
        os.read(ready, 1)
        with lock_run(run, trace):
            time.sleep(1)  # until all others have tried

    children = [forked(take_over) for _ in range(6)]
    os.write(go, b"x" * 6)
    codes = sorted(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
    assert codes == [0, 2, 2, 2, 2, 2]


def test_failed_replacement_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "summary.json"
    files.write_json(path, {"objective": float("nan")})

    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(RlrunError, match=r"summary\.json cannot be written: No space left on device"):
        files.write_json(path, {"objective": 1.0})
    assert json.loads(path.read_text()) == {"objective": None}
    assert [entry.name for entry in tmp_path.iterdir()] == ["summary.json"]


def git(folder: Path, *overrides: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *identity, *overrides], check=True, capture_output=True)


def test_manifest_tells_commit_and_changes(tmp_path):
    assert manifest.git(tmp_path) is None
    (tmp_path / "net.py").write_text("a = 1\n")
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "x")
    clean = manifest.git(tmp_path)
    (tmp_path / "net.py").write_text("a = 2\n")
    changed = manifest.git(tmp_path)
    assert clean["dirty"] is None
    assert changed["commit"] == clean["commit"]
    assert len(changed["dirty"]) == 64


def test_a_path_is_told_without_its_detours(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    assert RunDir("../b/run").path == tmp_path.resolve() / "b" / "run"
    with pytest.raises(RunDirError, match=rf"^{tmp_path.resolve()}/b does not exist"):
        RunDir.open("../b")


def test_runs_are_found_at_any_depth_once_each(tmp_path):
    folder, outside = tmp_path / "all", started(tmp_path / "outside" / "run")
    deep, near = started(folder.joinpath(*"abcdefgh" * 5, "run")), started(folder / "z")
    started(near.path / "videos" / "run")  # within a run nothing is looked for
    started(folder / ".hidden")
    links = {"latest": near.path, "aa": folder / "a", "up": tmp_path, "root": Path("/"), "me": folder}
    for name, target in (links | {"gone": folder / "gone", "away": outside.path.parent}).items():
        (folder / name).symlink_to(target)
    (folder / "loop").symlink_to(folder / "loop")
    expected = [deep.path, folder / "away" / "run", near.path]
    assert [run.path for run in runs_beneath(folder)] == expected
    assert [run.path for run in runs_beneath(folder / "latest")] == [folder / "latest"]

"""The run directory: made atomically, claimed carefully, read with clear errors."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from pathlib import Path

import pytest

from rlrun import files, manifest
from rlrun.errors import RlrunError, RunDirError
from rlrun.presence import Heartbeat, take_over, trace_of
from rlrun.rundir import RunDir

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


def test_absent_and_empty_folders_are_taken(tmp_path):
    (tmp_path / "empty").mkdir()
    assert RunDir.claim(tmp_path / "empty").checkpoints.is_dir()
    assert RunDir.claim(tmp_path / "a" / "b").checkpoints.is_dir()


def test_folder_with_a_run_is_refused(tmp_path):
    started(tmp_path / "run")
    with pytest.raises(RunDirError, match=r"holds a run already; go on with it: rlrun resume \S+run, or name another"):
        RunDir.claim(tmp_path / "run")


def test_folder_with_files_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunDirError, match=r"not empty: it holds notes\.txt"):
        RunDir.claim(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["notes.txt"]


def test_file_is_refused_as_run_directory(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirError, match="is a file"):
        RunDir.claim(tmp_path / "file")
    with pytest.raises(RunDirError, match="cannot be made: Not a directory"):
        RunDir.claim(tmp_path / "file" / "run")


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


def test_discarded_start_leaves_nothing(tmp_path):
    run = RunDir.create(tmp_path / "runs", algorithm="sac", env="x", seed=0)
    run.start(config="", overrides=[], manifest={})
    run.discard()
    assert list(tmp_path.iterdir()) == []


def test_discard_keeps_neighbours_and_the_users_folder(tmp_path):
    first = RunDir.create(tmp_path, algorithm="sac", env="x", seed=0)
    RunDir.create(tmp_path, algorithm="sac", env="x", seed=1).discard()
    (tmp_path / "mine").mkdir()
    RunDir.claim(tmp_path / "mine").discard()
    assert first.path.is_dir()
    assert list((tmp_path / "mine").iterdir()) == []


def test_opened_run_cannot_be_discarded(tmp_path):
    started(tmp_path / "run")
    RunDir.open(tmp_path / "run").discard()
    assert (tmp_path / "run" / "config.yaml").read_text() == "seed: 3\n"


def test_start_writes_what_was_asked_for(tmp_path):
    run = started(tmp_path / "run")
    assert run.overrides.read_text() == "seed=3\nenv=cartpole\n"
    assert json.loads(run.manifest.read_text()) == {"seed": 3}
    assert set(json.loads(run.status.read_text())) == {"status", "host", "pid", "heartbeat"}


def test_opening_a_folder_above_names_the_run_beneath(tmp_path):
    run = started(tmp_path / "runs" / "sac-x" / "one")
    with pytest.raises(RunDirError, match=re.escape(str(run.path))):
        RunDir.open(tmp_path / "runs")


def test_opening_a_folder_inside_names_the_run_above(tmp_path):
    run = started(tmp_path / "run")
    with pytest.raises(RunDirError, match=re.escape(f"did you mean '{run.path}'?")):
        RunDir.open(run.checkpoints)


def test_opening_nothing_says_so(tmp_path):
    with pytest.raises(RunDirError, match="does not exist"):
        RunDir.open(tmp_path / "none")
    with pytest.raises(RunDirError, match=r"is not a run directory.*manifest\.json$"):
        RunDir.open(tmp_path)


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
    (run.checkpoints / "latest").write_text("0000000900-0000000180\n")  # it is gone
    with pytest.raises(RunDirError, match=r"has no checkpoint 'latest'; it has 500$"):
        run.checkpoint("latest")
    with (run.checkpoints / "latest").open("wb") as file:
        file.truncate(1 << 40)  # from elsewhere
    with pytest.raises(RunDirError, match=r"has no checkpoint 'latest'; it has 500$"):
        run.checkpoint("latest")
    assert run.newest_first() == [run.checkpoint(500)]  # a run goes on without it
    with pytest.raises(RunDirError, match=r"has no checkpoint '7'; it has 500$"):
        run.checkpoint(7)


def test_running_process_that_is_gone_reads_interrupted(tmp_path):
    run = started(tmp_path / "run")
    gone = subprocess.Popen(["true"])
    gone.wait()
    status = json.loads(run.status.read_text())
    run.status.write_text(json.dumps({**status, "pid": os.getppid()}))
    assert run.read_status()["status"] == "running"
    run.status.write_text(json.dumps({**status, "pid": gone.pid}))
    assert run.read_status()["status"] == "interrupted"


def test_silent_process_elsewhere_reads_interrupted(tmp_path):
    run = started(tmp_path / "run")
    status = {**json.loads(run.status.read_text()), "host": "elsewhere"}
    run.status.write_text(json.dumps(status))
    assert run.read_status()["status"] == "running"
    run.status.write_text(json.dumps({**status, "heartbeat": "2020-01-01T00:00:00+00:00"}))
    assert run.read_status()["status"] == "interrupted"


def test_heartbeat_renews_the_status(tmp_path):
    run = started(tmp_path / "run")
    with Heartbeat(run, seconds=0.01):
        run.status.unlink()
        for _ in range(500):
            if run.status.exists():
                break
            time.sleep(0.01)
        assert json.loads(run.status.read_text())["status"] == "running"
    run.write_status("completed")
    assert run.read_status()["status"] == "completed"


@pytest.mark.parametrize("text", ["", "[]", "7", "{}", '{"status": "running"}', '{"status": "dancing"}'])
def test_a_damaged_status_is_an_interruption(text, tmp_path):
    run = started(tmp_path / "run")
    run.status.write_text(text)
    assert run.read_status()["status"] == "interrupted"


@pytest.mark.parametrize(
    "wrong", [*({"pid": pid} for pid in PIDS), {"heartbeat": "soon"}, {"heartbeat": None}], ids=str
)
def test_a_status_that_nobody_could_have_left_is_an_interruption(wrong, tmp_path):
    run = started(tmp_path / "run")
    run.write_status("running")
    run.status.write_text(json.dumps({**json.loads(run.status.read_text()), "pid": os.getppid()} | wrong))
    assert run.read_status()["status"] == "interrupted"


def claim(run: RunDir, pid: int) -> None:
    """Let a process work on a run."""
    run.write_status("running")
    run.status.write_text(json.dumps({**json.loads(run.status.read_text()), "pid": pid}))


def test_run_that_somebody_works_on_is_not_taken_over(tmp_path):
    run = started(tmp_path / "run")
    claim(run, os.getppid())
    before = run.status.read_text()
    with pytest.raises(RunDirError, match=rf"run is in progress: process {os.getppid()} on \S+ works on it"):
        take_over(run, trace_of(run))
    assert run.status.read_text() == before


@pytest.mark.parametrize("status", ["completed", "failed", "stopped"])
def test_run_that_ended_is_taken_over(status, tmp_path):
    run = started(tmp_path / "run")
    run.write_status(status)
    take_over(run, trace_of(run))
    assert json.loads(run.status.read_text())["status"] == "running"


def test_of_two_that_take_over_at_once_one_is_refused(tmp_path):
    run = started(tmp_path / "run")
    run.write_status("stopped")
    ready, go = os.pipe()
    children = [fork(run, ready) for _ in range(6)]
    os.write(go, b"x" * 6)
    codes = sorted(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
    assert codes == [0, 2, 2, 2, 2, 2]


@pytest.mark.parametrize("status", ["completed", "stopped", "failed"])
def test_a_run_that_was_worked_on_since_it_was_read_is_not_taken_over(status, tmp_path):
    run = started(tmp_path / "run")
    run.write_status("stopped")
    trace = trace_of(run)
    run.write_status("running")
    run.write_status(status)
    before = run.status.read_text()
    with pytest.raises(RunDirError, match=r"run was gone on with by another process meanwhile; try again$"):
        take_over(run, trace)
    assert run.status.read_text() == before
    take_over(run, trace_of(run))


def test_a_run_without_a_status_is_taken_over(tmp_path):
    run = started(tmp_path / "run")
    run.status.unlink()
    take_over(run, trace_of(run))
    assert json.loads(run.status.read_text())["status"] == "running"


def fork(run: RunDir, ready: int) -> int:
    """Start a process that takes a run over when told to, and stays until all others have tried."""
    trace = trace_of(run)
    child = os.fork()
    if child == 0:
        os.read(ready, 1)
        try:
            take_over(run, trace)
        except RunDirError:
            os._exit(2)
        time.sleep(1)
        os._exit(0)
    return child


def test_notes_are_appended(tmp_path):
    run = started(tmp_path / "run")
    run.note("first\n")
    run.note("second")
    assert [line.split(" ", 1)[1] for line in run.log.read_text().splitlines()] == ["first", "second"]


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


def test_a_file_system_that_is_read_only_is_named(tmp_path, monkeypatch):
    def fail(*args, **options):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "open", fail)
    monkeypatch.setattr(os, "unlink", fail)
    monkeypatch.setattr(Path, "unlink", fail)
    with pytest.raises(RlrunError, match=r"status\.json cannot be written: Read-only file system"):
        files.write_json(tmp_path / "status.json", {})


def test_damaged_json_is_named(tmp_path):
    (tmp_path / "summary.json").write_text('{"objective":')
    with pytest.raises(RunDirError, match=r"summary\.json is damaged"):
        files.read_json(tmp_path / "summary.json")


def git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True)


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


def test_manifest_is_json_with_versions(tmp_path):
    made = manifest.manifest(["rlrun", "train"], seed=3, project=tmp_path)
    assert json.loads(json.dumps(made)) == made
    assert made["packages"]["torch"].startswith("2.")
    assert (made["seed"], made["project"]) == (3, str(tmp_path))


def test_a_path_is_told_without_its_detours(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    assert RunDir("../b/run").path == tmp_path.resolve() / "b" / "run"
    with pytest.raises(RunDirError, match=rf"^{tmp_path.resolve()}/b does not exist"):
        RunDir.open("../b")

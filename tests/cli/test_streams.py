"""Standard streams: of any encoding, closed, full, or of a terminal that goes away."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlrun.runs.directory import RunDir

from .conftest import TINY

RLRUN = [sys.executable, "-m", "rlrun"]
TRAIN = ["train", "algorithm=dqn", "env=cartpole", *TINY]
LONG = [*TRAIN, "logger=[terminal]", "log.every=10", "stop.env_steps=1_000_000", "checkpoint.every=0"]


def shell(line: str, folder: Path, **values: str) -> subprocess.CompletedProcess[str]:
    """Run a line of a shell in which `rlrun` is the command."""
    line = line.replace("rlrun", f"'{sys.executable}' -m rlrun")
    return subprocess.run(
        ["sh", "-c", line], cwd=folder, env=os.environ | values, capture_output=True, text=True, errors="replace"
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a run whose name is not ASCII."""
    run = RunDir.claim(tmp_path / "实验")
    run.start(config="seed: 0\n", overrides=["seed=0"], manifest={})
    return tmp_path


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "utf-8", "ascii:strict", "cp1252"])
def test_characters_that_an_encoding_lacks_are_escaped(folder, encoding):
    for command in ("ls", "query 'SELECT run FROM runs' --csv", "ls nowhere-é"):
        answer = shell(f"rlrun {command}", folder, PYTHONIOENCODING=encoding, LC_ALL="C")
        assert answer.returncode == (2 if "nowhere" in command else 0), answer
        assert "UnicodeEncodeError" not in answer.stderr


def test_a_run_prints_a_path_that_latin_1_lacks(tmp_path):
    answer = shell(f"rlrun {' '.join(map(repr, TRAIN))} --run-dir 实验", tmp_path, PYTHONIOENCODING="latin-1")
    assert (answer.returncode, "Error" in answer.stderr) == (0, False)
    assert "\\u5b9e\\u9a8c" in answer.stdout


@pytest.mark.parametrize("command", ["ls", "ls --json", "query 'SELECT 1' --csv", "config algorithm=sac env=pendulum"])
def test_closed_and_full_streams_end_in_no_traceback(folder, command):
    for closed in (">&-", "2>&-", ">&- 2>&-", "<&-"):
        answer = shell(f"rlrun {command} {closed}", folder)
        assert (answer.returncode, answer.stderr.strip()) in [(0, ""), (0, "1 row"), (0, "1 run")], (closed, answer)
    full = shell(f"rlrun {command} >/dev/full", folder)
    assert full.returncode == 1
    assert full.stderr.splitlines()[-1] == "rlrun: standard output cannot be written: No space left on device"


def test_errors_never_go_to_standard_output(folder):
    for stderr in ("2>&-", "2>/dev/full"):
        answer = shell(f"rlrun ls nowhere {stderr}", folder)
        assert (answer.returncode, answer.stdout) == (2, "")


def test_a_reader_that_ends_early_is_no_failure_of_python(folder):
    answer = shell(
        "rlrun query 'SELECT range FROM range(100000)' --csv | head -1; rlrun list algorithms | true", folder
    )
    assert (answer.stdout, answer.stderr) == ("range\n", "")


def wait_for(path: Path, pid: int) -> None:
    for _ in range(600):
        if path.exists() and "return" in path.read_text():
            return
        assert os.waitpid(pid, os.WNOHANG)[0] == 0, "it has ended"
        time.sleep(0.1)


@pytest.mark.parametrize("way", ["the terminal closes", "kill", "nohup"])
def test_a_hangup_stops_a_run_in_order(tmp_path, way):
    """As at the end of an ssh connection; below nohup the run continues."""
    run = RunDir(tmp_path / "run")
    words = [*RLRUN, *LONG, "--run-dir", str(run.path)]
    pid, screen = pty.fork()
    if not pid:
        os.chdir(tmp_path)  # nohup writes a file there
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run below nohup
        os.execvp("nohup" if way == "nohup" else words[0], ["nohup", *words] if way == "nohup" else words)
    os.set_blocking(screen, False)
    wait_for(run.metrics, pid)
    if way == "the terminal closes":
        os.close(screen)
    else:
        os.kill(pid, signal.SIGHUP)
    if way == "nohup":
        size = run.metrics.stat().st_size
        time.sleep(1.0)
        assert run.metrics.stat().st_size > size
        os.kill(pid, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 75
    assert json.loads(run.status.read_text())["status"] == "stopped"
    assert run.checkpoint("latest").is_dir()
    assert ("SIGTERM" if way == "nohup" else "SIGHUP") in run.log.read_text()

"""`rlrun watch`: from files only, in a terminal of any size."""

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time

import pytest
from tests.command import code_of
from tests.identical import stamps

from rlrun.commands.screen import Curve, JobRow, View, chart, frame
from rlrun.commands.watch import Metrics, Watch, WatchedRun, runs_in
from rlrun.config.expansion import Job
from rlrun.core.errors import RequestError, RunDirError
from rlrun.runs import lock as locks
from rlrun.runs.directory import RunDir
from rlrun.sweep.directory import SweepDir

HOSTILE = "\x1b[2J\x1b]0;owned\x07\u202e"
CONFIG = "stop: {env_steps: '${budget}'}\nbudget: 1_000\n"


def record(step, **further):
    times = {"time/env_steps_per_second": 50.0, "time/update": 0.6, "time/env": 0.3, "time/act": 0.005}
    names = {"episode/return": 2.0 * step, "loss/q_loss": 1.0 / step, **times, **further}
    return json.dumps({"env_steps": step, "updates": step, "seconds": step / 50, **names}) + "\n"


def make(path, steps=(), **further):
    run = RunDir.claim(path)
    run.start(config=CONFIG, overrides=[], manifest={})
    run.write_status("completed")
    run.metrics.write_text("".join(record(step, **further) for step in steps))
    return run


@pytest.fixture
def sweep(tmp_path):
    """A sweep with a completed job, a running one, and one to come; their names are hostile."""
    keys = ("aaa", "bbb", "ccc")
    SweepDir(tmp_path).add(Job(key, (f"seed={number}",), f"lr={number}{HOSTILE}") for number, key in enumerate(keys))
    first = make(tmp_path / "jobs" / "aaa", [10], **{"evaluation/mean_return": 9.0})
    first.summary.write_text('{"status": "completed"}')
    os.utime(first.metrics, (1, 1))
    make(tmp_path / "jobs" / "bbb", range(100, 500, 10), **{f"loss/{HOSTILE}": 1.0, "system/memory": 300.0})
    lock = locks.locked(tmp_path / "jobs" / "bbb" / "lock")
    yield tmp_path
    locks.release(lock)


# --- reading


def test_metrics_are_read_as_their_file_grows(tmp_path):
    path = tmp_path / "metrics.jsonl"
    metrics = Metrics(path)
    assert not metrics.read()
    path.write_text(record(1) + record(2)[:20])
    assert metrics.read()
    assert metrics.curves["episode/return"] == [(1.0, 2.0)]
    path.write_text(record(1) + record(2))
    metrics.read()
    assert metrics.curves["episode/return"] == [(1.0, 2.0), (2.0, 4.0)]
    assert not metrics.read()


def test_a_file_that_a_resume_cut_is_read_again(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(map(record, range(1, 9))))
    metrics = Metrics(path)
    metrics.read()
    path.write_text("".join(map(record, [1, 2, *range(20, 40)])))  # shorter, then longer than before
    metrics.read()
    assert [x for x, _ in metrics.curves["episode/return"]] == [1, 2, *range(20, 40)]


def test_odd_lines_and_many_points_do_no_harm(tmp_path, monkeypatch):
    monkeypatch.setattr("rlrun.commands.watch.POINTS", 64)
    path = tmp_path / "metrics.jsonl"
    odd = ['{"env_steps": null}', "[1]", "{", '{"env_steps": 1e999, "updates": 1}', "\x00\x1b", "[" * 100_000]
    path.write_text("\n".join(odd) + "\n" + "".join(map(record, range(1, 1000))))
    metrics = Metrics(path)
    metrics.read()
    points = metrics.curves["episode/return"]
    assert len(points) <= 64
    assert points[0][0] == 1
    assert points == sorted(points)
    offline = [{"env_steps": 0, "updates": 7, "loss/q": 1.0}, {"env_steps": 2, "updates": 9, "loss/q": 1.0}]
    path.write_text("".join(json.dumps(line) + "\n" for line in offline))
    metrics.read()
    assert metrics.curves["loss/q"] == [(7, 1.0), (9, 1.0)]  # steps come after the updates before them


def test_looking_at_jobs_writes_nothing(sweep):
    before = stamps(sweep)
    assert [status.state for status in SweepDir(sweep).statuses()] == ["completed", "running", "pending"]
    assert stamps(sweep) == before


def test_keys_choose_metric_and_run(sweep):
    looked = Watch(lambda: [WatchedRun(RunDir(sweep / "jobs" / job.key), job.key) for job in SweepDir(sweep).jobs()])
    looked.refresh()
    assert looked.chosen == 1  # whose metrics are the newest
    assert looked.names()[:2] == ["episode/return", f"loss/{HOSTILE}"]
    assert looked.view(9).parts[0] == "490/1,000 steps 49%"
    assert "0:10 to go" in looked.view(9).parts
    assert "60% update, 30% env" in looked.view(9).parts
    for key, metric in (("right", f"loss/{HOSTILE}"), ("left", "episode/return"), ("left", "time/update")):
        looked.press(key)
        assert looked.view(9).curves[0].name == metric
    looked.press("up")
    assert (looked.chosen, looked.view(9).curves[0].name) == (0, "time/update")  # the same one, where there is one
    looked.press("down")
    looked.press("down")
    assert (looked.chosen, looked.view(9).curves) == (2, [])  # it has not begun
    only = Watch(runs_in(sweep), ["q_lo"])
    only.refresh()
    assert only.names() == ["loss/q_loss"]
    none = Watch(runs_in(sweep), ["lss"])
    none.refresh()
    assert "no metric has 'lss' in its name (did you mean 'loss'?)" in frame(none.view(9), 80, 24).plain
    with pytest.raises(RequestError, match="no jobs yet"):
        Watch(list)
    with pytest.raises(RunDirError, match="holds no run"):
        runs_in(sweep / "jobs" / "aaa" / "checkpoints")


# --- drawing


def test_a_line_rises_from_corner_to_corner():
    lines = chart(Curve("loss", [(0, 0.0), (50, 50.0), (100, 100.0)]), 30, 7)
    assert lines[0] == "loss  100"
    assert {len(line) for line in lines[1:]} == {30}
    assert lines[1].startswith("      100 ")
    assert lines[5].startswith("        0 ")
    assert lines[-1].split() == ["0", "100"]
    columns = [min(i for i, letter in enumerate(line) if letter > "\u2800") for line in lines[1:6]]
    assert columns == sorted(columns, reverse=True)
    assert columns[-1] == 10
    assert "*" in chart(Curve("loss", [(0, 1.0)]), 30, 7, braille=False)[5]
    assert chart(Curve("loss", []), 30, 7) == ["loss", *[""] * 6]


@pytest.mark.parametrize("size", [(80, 24), (160, 48), (20, 6), (1, 1)])
@pytest.mark.parametrize("jobs", [1, 3, 200])
def test_frame_has_the_size_of_the_terminal(size, jobs):
    rows = [JobRow(f"{HOSTILE}{number} 名前", "running", "1,000", "1.00", HOSTILE) for number in range(jobs)]
    curves = [Curve(f"{HOSTILE}{number}", [(0, 1.0), (1, 1e90), (2, -1e90)]) for number in range(9)]
    width, height = size
    lines = frame(View(rows, jobs - 1, ["part" * 9] * 4, curves, (0, 9)), width, height).split("\n")
    assert len(lines) == height
    assert {line.cell_len for line in lines} == {width}
    assert all(letter.isprintable() for line in lines for letter in line.plain)


# --- in a terminal


class Screen:
    """A terminal of a size, on which the command draws."""

    def __init__(self, columns, lines, *arguments):
        self.lines = lines
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.settings = termios.tcgetattr(self.slave)
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        environment |= {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"}
        command = [sys.executable, "-m", "rlrun", "watch", *map(str, arguments)]
        ends = {"stdin": self.slave, "stdout": self.slave, "stderr": self.slave}
        self.process = subprocess.Popen(command, **ends, env=environment, start_new_session=True)
        self.data = b""

    def press(self, keys):
        os.write(self.master, keys)

    def until(self, *texts, seconds=100.0):
        """Read until the newest frame has these texts; return it in lines."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if select.select([self.master], [], [], 0.05)[0]:
                self.data += os.read(self.master, 1 << 16)
                continue
            shown = self.frame()
            if all(any(text in line for line in shown) for text in texts):
                return shown
        raise AssertionError(f"no frame has {texts}: {self.data[-3000:]!r}")

    def frame(self):
        newest = self.data.rpartition(b"\x1b[H")[2].decode(errors="replace")
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", newest).replace("\r", "").split("\n")[: self.lines]

    def end(self):
        """Return the exit code, and whether the terminal is as it was."""
        code = self.process.wait(timeout=60)
        while select.select([self.master], [], [], 0.2)[0]:
            self.data += os.read(self.master, 1 << 16)
        same = termios.tcgetattr(self.slave) == self.settings
        os.close(self.slave)
        os.close(self.master)
        return code, same


@pytest.fixture
def screen():
    opened = []

    def start(*arguments):
        opened.append(Screen(*arguments))
        return opened[-1]

    yield start
    for terminal in opened:
        if terminal.process.poll() is None:
            terminal.process.kill()
            terminal.process.wait()


def test_sweep_in_a_small_terminal(sweep, screen):
    terminal = screen(80, 24, sweep, "--every", "0.2")
    shown = terminal.until("490/1,000 steps 49%", "episode/return  980", "run 2/3")
    assert len(shown) == 24
    assert {len(line) for line in shown} == {80}
    table = [line.split() for line in shown[-5:-1]]
    assert [row[0] for row in table] == ["run", "aaa", "bbb", "ccc"]
    assert ["completed" in table[1], "running" in table[2], "pending" in table[3]] == [True] * 3
    assert sum(any(letter > "\u2800" for letter in line) for line in shown) > 5  # a curve
    with open(sweep / "jobs" / "bbb" / "metrics.jsonl", "a") as file:
        file.write(record(700))
    terminal.until("700/1,000 steps 70%", "episode/return  1400")
    terminal.press(b"\x1b[C\x1b[C")
    terminal.until("loss/q_loss  0.001429")
    terminal.press(b"\x1b[A")
    terminal.until("run 1/3", "10/1,000 steps 1%")
    terminal.press(b"q")
    assert terminal.end() == (0, True)
    assert b"\x1b[?1049l" in terminal.data  # the screen of before is back
    assert b"owned" in terminal.data
    assert [code for code in (b"\x1b]", b"\x07", b"\x1b[2J\x1b]", "\u202e".encode()) if code in terminal.data] == []


def test_run_in_a_large_terminal(tmp_path, screen):
    run = make(tmp_path / "run", range(1, 900, 3), **{"evaluation/mean_return": 3.0})
    terminal = screen(160, 48, run.path, "--every", "0.2")
    shown = terminal.until("evaluation/mean_return  3", "loss/q_loss", "completed")
    assert len(shown) == 48
    assert {len(line) for line in shown} == {160}
    assert sum(name in "".join(shown) for name in ("episode/return", "loss/q_loss", "time/act", "time/env")) == 4
    terminal.press(b"\x04")
    assert terminal.end() == (0, True)


def test_without_a_terminal_it_names_another_command(tmp_path, capsys):
    make(tmp_path / "run")
    assert code_of("watch", str(tmp_path)) == 2
    assert capsys.readouterr().err == "rlrun: watch: wanted a terminal; rlrun ls prints a list of runs\n"
    assert code_of("watch", str(tmp_path / "none")) == 2
    assert "does not exist" in capsys.readouterr().err

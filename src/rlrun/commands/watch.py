"""Watch runs while they train, from their files only; the live view of `rlrun watch`."""

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.live import Live

from rlrun.commands.screen import Curve, JobRow, View, frame
from rlrun.config.files import parse_yaml
from rlrun.config.interpolation import locate, split
from rlrun.core.errors import RequestError, RlrunError, RunDirError, did_you_mean
from rlrun.core.files import open_regular, place_of, read_bytes
from rlrun.runs.directory import RunDir, runs_beneath
from rlrun.runs.progress import changed, number_of, parts, progress, record_of, score_of

LISTING = 30.0  # seconds between two searches for new runs
CHUNK = 1 << 22  # bytes of metrics per read
MARK = 64  # bytes before the reading position that are compared, to detect a file that was cut and has grown again
POINTS = 1_024  # most points of a curve; beyond that every second one is dropped
FIGURES = 6.0  # seconds between two updates of the numbers in a row of the list
NAMES = 500  # most metrics of a run
CURVES = 12  # most charts in a frame
# metrics that come first, in this order
FIRST = ("evaluation/mean_return", "validation/", "episode/return", "loss/", "episode/", "entropy/", "value/")
ARROWS = {b"\x1b[A": "up", b"\x1b[B": "down", b"\x1b[C": "right", b"\x1b[D": "left"}
LETTERS = {b"k": "up", b"j": "down", b"l": "right", b"h": "left", b"q": "quit", b"\x03": "quit", b"\x04": "quit"}


class WatchedRun(NamedTuple):
    """A run to watch: its folder (which may not exist yet), name, state (None = from its files), and error."""

    run: RunDir
    name: str
    state: str | None = None
    why: str = ""


class Metrics:
    """The metrics of a run, read incrementally as its file grows.

    Attributes:
        curves: points (x, value) of each metric; x counts updates before the first environment step, then steps.
        newest: the newest value of each.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._forget()

    def _forget(self) -> None:
        self.curves: dict[str, list[tuple[float, float]]] = {}
        self.newest: dict[str, float] = {}
        self._place, self._mark, self._offline = 0, b"", 0.0

    def read(self) -> bool:
        """Read new records, up to `CHUNK` bytes; return True if there were any."""
        try:
            with os.fdopen(open_regular(self.path), "rb") as file:
                file.seek(self._place - len(self._mark))
                if file.read(len(self._mark)) != self._mark:  # a resume has cut the file
                    self._forget()
                    file.seek(0)
                data = file.read(CHUNK)
        except (OSError, RunDirError):
            return False
        whole = data[: data.rfind(b"\n") + 1] or (data if len(data) == CHUNK else b"")
        self._place, self._mark = self._place + len(whole), (self._mark + whole)[-MARK:]
        for line in whole.splitlines():
            self._add(record_of(line) or {})
        return bool(whole)

    def _add(self, record: dict[str, Any]) -> None:
        values = {name: number for name, value in record.items() if (number := number_of(value)) is not None}
        if "env_steps" not in values or "updates" not in values:
            return
        if not values["env_steps"]:
            self._offline = values["updates"]
        x = self._offline + values["env_steps"]
        for name, value in values.items():
            if name not in self.newest and len(self.newest) >= NAMES:
                continue
            self.newest[name] = value
            if "/" in name:
                points = self.curves.setdefault(name, [])
                points.append((x, value))
                if len(points) > POINTS:
                    del points[1::2]


class Watch:
    """The state of the live view: the jobs, the selected one, and its selected metric.

    Args:
        jobs: returns the current jobs.
        wanted: parts of metric names to show; none = all.

    Raises:
        RequestError: there is no job.
    """

    def __init__(self, jobs: Callable[[], Sequence[WatchedRun]], wanted: Sequence[str] = ()) -> None:
        self._jobs = jobs
        self._wanted = wanted
        self.jobs: Sequence[WatchedRun] = jobs()
        if not self.jobs:
            raise RequestError("watch: the sweep has no jobs yet")
        newest = [changed(job.run.metrics) for job in self.jobs]
        self.chosen = newest.index(max(newest))
        self.metric: str | None = None
        self._metrics: dict[Path, Metrics] = {}
        self._totals: dict[Path, int | None] = {}
        # run -> time of reading, modification time of its file then, and the numbers
        self._figures: dict[Path, tuple[float, float, dict[str, float]]] = {}

    def refresh(self) -> None:
        """Update the list of jobs, and the metrics of the selected one."""
        with suppress(RunDirError):  # a file is just being written
            self.jobs = self._jobs() or self.jobs
        self.chosen = min(self.chosen, len(self.jobs) - 1)
        run = self.jobs[self.chosen].run
        metrics = self._metrics.setdefault(run.path, Metrics(run.metrics))
        self._metrics = {run.path: metrics}  # others are read again when they are selected
        metrics.read()

    def press(self, key: str) -> None:
        """Select the next or previous run or metric by an arrow key."""
        if key in ("up", "down"):
            self.chosen = (self.chosen + (1 if key == "down" else -1)) % len(self.jobs)
            self.refresh()
        elif (names := self.names()) and key in ("left", "right"):
            self.metric = names[(self._index(names) + (1 if key == "right" else -1)) % len(names)]

    def names(self) -> list[str]:
        """Return the shown metrics of the selected run, important ones first."""
        metrics = self._metrics.get(self.jobs[self.chosen].run.path)
        names = [] if metrics is None else list(metrics.curves)
        if self._wanted:
            names = [name for name in names if any(part in name for part in self._wanted)]
        return sorted(names, key=lambda name: ([not name.startswith(first) for first in FIRST], name))

    def _index(self, names: Sequence[str]) -> int:
        return names.index(self.metric) if self.metric in names else 0

    def view(self, rows: int) -> View:
        """Return the content of a frame; rows: most runs around the selected one whose numbers are read."""
        job = self.jobs[self.chosen]
        metrics, names = self._metrics.get(job.run.path, Metrics(job.run.metrics)), self.names()
        newest = {"env_steps": 0.0, "updates": 0.0, **metrics.newest}
        texts = parts(newest, total=self._total(job.run)) if metrics.newest else []
        if "system/memory" in newest:
            texts.append(f"{newest['system/memory']:,.0f} MiB ({newest.get('system/memory_growth', 0.0):+,.0f})")
        index = self._index(names)
        shown = [Curve(name, metrics.curves[name]) for name in (names[index:] + names[:index])[:CURVES]]
        near = range(self.chosen - rows, self.chosen + rows + 1)
        listed = [self._row(job, number in near) for number, job in enumerate(self.jobs)]
        view = View(listed, self.chosen, texts, shown, (index, len(names)))
        if names or not metrics.curves:
            return view
        pieces = [piece for name in metrics.curves for piece in (*name.split("/"), name)]
        hints = "".join(did_you_mean(part, pieces) for part in self._wanted)
        return view._replace(without=f"no metric has {' or '.join(map(repr, self._wanted))} in its name{hints}")

    def _row(self, job: WatchedRun, visible: bool) -> JobRow:
        state = job.state or (str(job.run.read_status()["status"]) if visible else "")
        if not visible:
            return JobRow(job.name, state)
        read, before, newest = self._figures.get(job.run.path, (-FIGURES, 0.0, {}))
        if time.monotonic() >= read + FIGURES and (now := changed(job.run.metrics)) != before:
            newest = progress(job.run.metrics)
            self._figures[job.run.path] = time.monotonic(), now, newest
        steps = number_of(newest.get("env_steps")) or number_of(newest.get("updates"))
        value = number_of(score_of(newest))
        return JobRow(
            job.name, state, f"{steps:,.0f}" if steps else "", "" if value is None else f"{value:.2f}", job.why
        )

    def _total(self, run: RunDir) -> int | None:
        """Return the budget of a run in environment steps, or in updates without an environment."""
        if run.path not in self._totals:
            self._totals[run.path] = None
            with suppress(RlrunError, RecursionError):
                config = parse_yaml(read_bytes(run.config).decode(errors="replace"), "")
                key = "stop.updates" if config.get("env", ...) is None else "stop.env_steps"
                budget = number_of(locate(config, split(key)).node)
                self._totals[run.path] = int(budget) if budget else None
        return self._totals[run.path]


def runs_in(folder: Path | str) -> Callable[[], Sequence[WatchedRun]]:
    """Return a function that lists the runs in a folder, and searches for new ones periodically.

    Raises:
        RunDirError: there are no runs.
    """
    place = place_of(folder)
    listed: list[WatchedRun] = []
    due = 0.0

    def jobs() -> Sequence[WatchedRun]:
        nonlocal due, listed
        if time.monotonic() >= due:
            listed, due = (
                [WatchedRun(run, _name(run, place)) for run in runs_beneath(place)],
                time.monotonic() + LISTING,
            )
        return listed

    if not jobs():
        raise RunDirError(f"{place} holds no run" if place.is_dir() else f"{place} does not exist")
    return jobs


def _name(run: RunDir, place: Path) -> str:
    return run.path.name if run.path == place else str(run.path.relative_to(place))


def watch(jobs: Callable[[], Sequence[WatchedRun]], *, metrics: Sequence[str] = (), every: float = 2.0) -> None:
    """Draw a live view on the terminal until `q` is pressed.

    Args:
        jobs: returns the current jobs.
        metrics: parts of metric names to show; none = all.
        every: seconds between two frames; a key press draws one at once.

    Raises:
        RequestError: there is no terminal, or no job.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM", "dumb") == "dumb":
        raise RequestError("watch: wanted a terminal; rlrun ls prints a list of runs")
    looked, console = Watch(jobs, metrics), Console()
    braille = (console.encoding or "").lower().startswith("utf")
    live = Live(console=console, screen=True, auto_refresh=False)
    before: Any = None
    with suppress(KeyboardInterrupt), _keys() as keys, live:
        pressed: list[str] = []
        while "quit" not in pressed:
            if not pressed:
                looked.refresh()
            for key in pressed:
                looked.press(key)
            width, height = console.size
            drawn = width, height, frame(looked.view(height // 3), width, height, braille=braille)
            if drawn != before:
                before = drawn
                live.update(drawn[2], refresh=True)
            pressed = keys(every)


@contextmanager
def _keys() -> Iterator[Callable[[float], list[str]]]:
    """Set the terminal to send keys at once; yield a function that waits for keys, up to some seconds."""
    handle = sys.stdin.fileno()
    settings = termios.tcgetattr(handle)

    def keys(seconds: float) -> list[str]:
        if not select.select([handle], [], [], seconds)[0]:
            return []
        data = os.read(handle, 64)
        if not data:
            return ["quit"]  # the terminal is gone
        known = {**ARROWS, **{arrow.replace(b"[", b"O"): name for arrow, name in ARROWS.items()}}
        arrows = [known[data[i : i + 3]] for i in range(len(data)) if data[i : i + 3] in known]
        return arrows or [LETTERS[data[i : i + 1]] for i in range(len(data)) if data[i : i + 1] in LETTERS] or ["other"]

    try:
        tty.setcbreak(handle)
        yield keys
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, settings)

"""What a person sees of a sweep: a live table on a terminal, elsewhere a line for whatever changed."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlrun.core.errors import printable
from rlrun.runs.directory import RunDir
from rlrun.runs.files import counted, duration
from rlrun.runs.progress import progress
from rlrun.sweep.job_store import Entry, State

ORDER: tuple[State, ...] = ("running", "failed", "queued", "pending", "completed", "pruned")
ROWS = 30  # of a live table, at most


class Show:
    """Show the progress of a sweep's jobs.

    Args:
        folder: of the sweep.
        grows: more jobs than are known may come, so that nothing is said of the time to go.
    """

    def __init__(self, folder: Path, *, grows: bool = False) -> None:
        self.folder = folder
        self.grows = grows
        self.stream = sys.stderr
        self._printed: dict[str, tuple[Any, ...]] = {}
        self._since: dict[str, float] = {}  # when a job was first seen running
        self._took: list[float] = []  # seconds of jobs that were seen to begin and to end
        self._workers = 1  # jobs that run at a time, at most so far
        self._live: Any = None

    def __enter__(self) -> Show:
        if self.stream.isatty() and os.environ.get("TERM") != "dumb":
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(file=self.stream), auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, entries: list[Entry]) -> None:
        self._follow(entries)
        if self._live is not None:
            self._live.update(self._table(entries), refresh=True)
            return
        for number, entry in enumerate(entries, start=1):
            news = (entry.state, entry.error)
            if self._printed.get(entry.key, ("pending", None)) != news:
                place = f"[{number}/{len(entries)}] {entry.key} {entry.label}".rstrip()
                details = f": {entry.error}" if entry.error is not None and entry.state != "completed" else ""
                if entry.state == "completed":
                    value = figures(self.folder, entry)[1]
                    texts = (f"return {value}" if value else "", self._to_go(entries))
                    details = "".join(f", {text}" for text in texts if text)
                print(f"{place}: {entry.state}{details}", file=self.stream, flush=True)
            self._printed[entry.key] = news

    def say(self, line: str) -> None:
        """Print a line; above the table, where there is one."""
        if self._live is not None:
            self._live.console.print(printable(line), markup=False, highlight=False)
        else:
            print(printable(line), file=self.stream, flush=True)

    def _table(self, entries: list[Entry]) -> Any:
        from rich.table import Table
        from rich.text import Text

        shown = sorted(entries, key=lambda entry: ORDER.index(entry.state))
        head, *lines = rows(self.folder, shown[:ROWS])
        title = "; ".join(filter(None, (summary(entries), self._to_go(entries))))
        table = Table(box=None, title=title, title_justify="left")
        for name in head:
            table.add_column(name, no_wrap=True, justify="right" if name in ("steps", "return") else "left")
        for line in lines:
            table.add_row(*map(Text, line))
        if len(shown) > ROWS:
            table.add_row("…", f"{len(shown) - ROWS} more")
        return table

    def _follow(self, entries: Sequence[Entry]) -> None:
        """Note how long jobs take that begin and end while this looks on."""
        now = time.monotonic()
        for entry in entries:
            if entry.state == "running":
                self._since.setdefault(entry.key, now)
            elif (since := self._since.pop(entry.key, None)) is not None and entry.state == "completed":
                self._took.append(now - since)
        self._workers = max(self._workers, len(self._since))

    def _to_go(self, entries: Sequence[Entry]) -> str:
        """Return how long all jobs take still, by the mean of those that have ended."""
        waiting = sum(entry.state in ("pending", "queued") for entry in entries)
        if self.grows or not self._took or not (waiting or self._since):
            return ""
        mean, now = sum(self._took) / len(self._took), time.monotonic()
        seconds = mean * waiting + sum(max(mean - (now - since), 0.0) for since in self._since.values())
        return f"{duration(seconds / min(self._workers, waiting + len(self._since)))} to go"


def figures(folder: Path, entry: Entry) -> tuple[float, str]:
    """Return steps and return of a job, as far as they are known."""
    if entry.state in ("pending", "queued"):
        return 0, ""
    metrics = progress(RunDir(folder / "jobs" / entry.key).metrics)
    value = metrics.get("evaluation/mean_return", metrics.get("episode/return"))
    return metrics.get("env_steps") or metrics.get("updates") or 0, "" if value is None else f"{value:.2f}"


def rows(folder: Path, entries: Sequence[Entry]) -> list[tuple[str, ...]]:
    """Return a table of jobs with a head: overrides, state, steps, return, and why one failed."""
    table: list[tuple[str, ...]] = [("job", "overrides", "state", "steps", "return", "why")]
    for entry in entries:
        steps, value = figures(folder, entry)
        overrides, why = (
            entry.label or " ".join(entry.overrides),
            "" if entry.state == "completed" else entry.error or "",
        )
        table.append(
            (entry.key, printable(overrides), entry.state, f"{steps:,}" if steps else "", value, printable(why))
        )
    return table


def summary(entries: Sequence[Entry]) -> str:
    """Return how many jobs are in which state: `24 jobs: 3 running, 21 completed`."""
    states = Counter(entry.state for entry in entries)
    return f"{counted(len(entries), 'job')}: " + ", ".join(
        f"{states[state]} {state}" for state in ORDER if states[state]
    )

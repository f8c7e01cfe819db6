"""What a person sees of a sweep: a line for whatever changed, and a table at its end. `rlrun watch` is a live view."""

import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlrun.core.errors import printable
from rlrun.runs.directory import RunDir
from rlrun.runs.files import counted, duration
from rlrun.runs.progress import VALIDATION, judged, progress, score_of
from rlrun.sweep.job_store import Entry, State, place_of

ORDER: tuple[State, ...] = ("running", "failed", "queued", "pending", "completed", "pruned")


class Show:
    """Show the progress of a sweep's jobs.

    Args:
        folder: of the sweep.
        grows: more jobs than are known may come, so that nothing is said of the time to go.
    """

    def __init__(self, folder: Path, *, grows: bool = False) -> None:
        self.folder = folder
        self.grows = grows
        self._printed: dict[str, tuple[Any, ...]] = {}
        self._since: dict[str, float] = {}  # when a job was first seen running
        self._took: list[float] = []  # seconds of jobs that were seen to begin and to end
        self._workers = 1  # jobs that run at a time, at most so far

    def __call__(self, entries: list[Entry]) -> None:
        self._follow(entries)
        for number, entry in enumerate(entries, start=1):
            news = (entry.state, entry.error)
            if self._printed.get(entry.key, ("pending", None)) != news:
                place = f"[{number}/{len(entries)}] {entry.key} {entry.label}".rstrip()
                details = f": {entry.error}" if entry.error is not None and entry.state != "completed" else ""
                if entry.state == "completed":
                    _, name, value = figures(self.folder, entry)
                    texts = (f"{name} {value}" if value else "", self._to_go(entries))
                    details = "".join(f", {text}" for text in texts if text)
                self.say(f"{place}: {entry.state}{details}")
            self._printed[entry.key] = news

    def say(self, line: str) -> None:
        """Print a line."""
        print(printable(line), file=sys.stderr, flush=True)

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


def figures(folder: Path, entry: Entry) -> tuple[float, str, str]:
    """Return steps of a job, the name of its objective or `return`, and the value, as far as they are known."""
    if entry.state in ("pending", "queued"):
        return 0, "return", ""
    metrics = progress(RunDir(folder / place_of(entry)).metrics)
    name, value = judged(metrics) or "", score_of(metrics)
    name, form = (name.removeprefix(VALIDATION), ".4g") if name.startswith(VALIDATION) else ("return", ".2f")
    return metrics.get("env_steps") or metrics.get("updates") or 0, name, "" if value is None else f"{value:{form}}"


def rows(folder: Path, entries: Sequence[Entry]) -> list[tuple[str, ...]]:
    """Return a table of jobs with a head: overrides, state, steps, return or objective, and why one failed."""
    known = [(entry, *figures(folder, entry)) for entry in entries]
    score = " / ".join(dict.fromkeys(name for _, _, name, value in known if value)) or "return"
    table: list[tuple[str, ...]] = [("job", "overrides", "state", "steps", score, "why")]
    for entry, steps, _, value in known:
        overrides = printable(entry.label or " ".join(entry.overrides))
        why = printable("" if entry.state == "completed" else entry.error or "")
        table.append((entry.key, overrides, entry.state, f"{steps:,}" if steps else "", value, why))
    return table


def summary(entries: Sequence[Entry]) -> str:
    """Return how many jobs are in which state: `24 jobs: 3 running, 21 completed`."""
    states = Counter(entry.state for entry in entries)
    return f"{counted(len(entries), 'job')}: " + ", ".join(
        f"{states[state]} {state}" for state in ORDER if states[state]
    )

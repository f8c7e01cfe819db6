"""Print the progress of a sweep: a line for each change, and a table at its end. `rlrun watch` is a live view."""

import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rlrun.core.errors import printable
from rlrun.core.files import counted, duration
from rlrun.runs.progress import VALIDATION, judged, progress, score_of
from rlrun.sweep.directory import JobStatus, State, SweepDir

ORDER: tuple[State, ...] = ("running", "failed", "pending", "completed", "pruned")


class Show:
    """Prints the progress of a sweep's jobs.

    Args:
        sweep: the sweep.
        grows: more jobs may be added, so no remaining time is printed.
    """

    def __init__(self, sweep: SweepDir, *, grows: bool = False) -> None:
        self.sweep = sweep
        self.grows = grows
        self._printed: dict[str, tuple[Any, ...]] = {}
        self._since: dict[str, float] = {}  # time when a job was first seen running
        self._took: list[float] = []  # seconds of jobs whose begin and end were seen
        self._workers = 1  # largest number of jobs that ran at a time so far

    def __call__(self, statuses: list[JobStatus]) -> None:
        self._follow(statuses)
        for number, status in enumerate(statuses, start=1):
            job, state, _, error = status
            if self._printed.get(job.key, ("pending", None)) != (state, error):
                place = f"[{number}/{len(statuses)}] {job.key} {job.label}".rstrip()
                details = f": {error}" if error is not None else ""
                if state == "completed":
                    _, name, value = figures(self.sweep, status)
                    texts = (f"{name} {value}" if value else "", self._to_go(statuses))
                    details = "".join(f", {text}" for text in texts if text)
                self.say(f"{place}: {state}{details}")
            self._printed[job.key] = state, error

    def say(self, line: str) -> None:
        """Print a line."""
        print(printable(line), file=sys.stderr, flush=True)

    def _follow(self, statuses: Sequence[JobStatus]) -> None:
        """Record the duration of jobs whose begin and end are seen."""
        now = time.monotonic()
        for job, state, *_ in statuses:
            if state == "running":
                self._since.setdefault(job.key, now)
            elif (since := self._since.pop(job.key, None)) is not None and state == "completed":
                self._took.append(now - since)
        self._workers = max(self._workers, len(self._since))

    def _to_go(self, statuses: Sequence[JobStatus]) -> str:
        """Return the remaining time of all jobs as text, estimated by the mean duration of jobs so far."""
        waiting = sum(status.state == "pending" for status in statuses)
        if self.grows or not self._took or not (waiting or self._since):
            return ""
        mean, now = sum(self._took) / len(self._took), time.monotonic()
        seconds = mean * waiting + sum(max(mean - (now - since), 0.0) for since in self._since.values())
        return f"{duration(seconds / min(self._workers, waiting + len(self._since)))} to go"


def figures(sweep: SweepDir, status: JobStatus) -> tuple[float, str, str]:
    """Return a job's steps, the name of its objective (or `return`), and the value; 0 and "" if unknown."""
    metrics = progress(sweep.run(status.job).metrics)
    name, value = judged(metrics) or "", score_of(metrics)
    name, form = (name.removeprefix(VALIDATION), ".4g") if name.startswith(VALIDATION) else ("return", ".2f")
    return metrics.get("env_steps") or metrics.get("updates") or 0, name, "" if value is None else f"{value:{form}}"


def rows(sweep: SweepDir, statuses: Sequence[JobStatus]) -> list[tuple[str, ...]]:
    """Return a table of jobs with a header: overrides, state, steps, return or objective, and reason of failure."""
    known = [(status, *figures(sweep, status)) for status in statuses]
    score = " / ".join(dict.fromkeys(name for _, _, name, value in known if value)) or "return"
    table: list[tuple[str, ...]] = [("job", "overrides", "state", "steps", score, "why")]
    for (job, state, _, error), steps, _, value in known:
        overrides = printable(job.label or " ".join(job.overrides))
        table.append((job.key, overrides, state, f"{steps:,}" if steps else "", value, error or ""))
    return table


def summary(statuses: Sequence[JobStatus]) -> str:
    """Return the number of jobs in each state: `24 jobs: 3 running, 21 completed`."""
    states = Counter(status.state for status in statuses)
    return f"{counted(len(statuses), 'job')}: " + ", ".join(
        f"{states[state]} {state}" for state in ORDER if states[state]
    )

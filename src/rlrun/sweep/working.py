"""What a job at work is to a coordinator."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rlrun.files import NOTE_BYTES, head, known
from rlrun.interpreter import describe_exit
from rlrun.rundir import RunDir
from rlrun.sweep.book import Entry
from rlrun.sweep.launching import BUDGET
from rlrun.watching import last_line, quiet_for

WATCH = 1.0  # seconds between two looks for signs of life
LATE = 5.0  # seconds that files may take from one machine to another


class Process(Protocol):
    """A job at work, or on its way there."""

    def waits(self) -> bool:
        """Tell whether it has not begun yet, in the queue of a scheduler say, so that its silence means nothing."""

    def poll(self) -> int | None:
        """Return the exit code; None while it works."""

    def terminate(self) -> None:
        """Ask it to leave in order, so that it can be gone on with."""

    def kill(self) -> None:
        """End it at once."""


class NoProcess:
    """What stands for the process of a job that could not be started."""

    def waits(self) -> bool:
        return False

    def poll(self) -> int:
        return 1

    def terminate(self) -> None:
        pass

    kill = terminate


@dataclass
class Working:
    """A job that a coordinator has begun.

    Attributes:
        log: what its process prints.
        begun: seconds since 1970.
        watched: when signs of life were last looked for.
        why: it was killed, or never begun.
        asked: it was told to leave.
        code: exit code of its process, once that has ended.
        ended: when that was, on the monotonic clock.
    """

    entry: Entry
    process: Process
    run: RunDir
    log: Path
    begun: float = field(default_factory=time.time)
    watched: float = 0.0
    why: str | None = None
    asked: bool = False
    code: int | None = None
    ended: float = 0.0

    def poll(self) -> int | None:
        """Return the exit code; 0 only where the run is completed, which other machines may see a moment later."""
        if self.code is None:
            self.code, self.ended = self.process.poll(), time.monotonic()
        if self.code == 0 and not is_completed(self.run, self.entry.words):
            if time.monotonic() - self.ended < LATE:
                return None
            self.code, self.why = 1, "its process left with exit code 0 before the run was completed"
        return self.code

    def leave(self, *, again: bool = False) -> None:
        """Ask it to leave in order; once unless `again`, for a second signal would cut off what it saves."""
        if again or not self.asked:
            self.asked = True
            self.process.terminate()

    def end_if_hung(self, stall: float | None) -> None:
        """Kill it if it gives no sign of life, or has made no progress for so many seconds."""
        now = time.time()
        if self.process.waits():
            self.begun = max(self.begun, now)
        if self.why is not None or self.code is not None or now - self.watched < WATCH:
            return
        self.watched = now
        self.why = quiet_for(self.run, self.log, since=self.begun, stall=stall)
        if self.why is not None:
            self.process.kill()

    def reason(self, code: int) -> str:
        """Return in one line why it failed."""
        if self.why is not None:
            return self.why
        if code == -signal.SIGKILL:
            return "killed by SIGKILL: by hand, or for want of memory"
        if code < 0:
            return describe_exit(code).removeprefix("it was ")
        return last_line(self.log) or f"exit code {code}"


def is_completed(run: RunDir, words: Sequence[str]) -> bool:
    """Return True if a run's files say that it was completed, for the budget of these words or beyond it."""
    summary = known(run.summary)
    if (summary.get("status"), run.read_status()["status"]) != ("completed", "completed"):
        return False
    budget = [word for word in words if BUDGET.fullmatch(word)]
    heard = head(run.overrides, NOTE_BYTES).decode(errors="replace").splitlines()
    if summary.get("stopped_by") is None or all(word in heard for word in budget):
        return True
    reached = {**summary, "mean_return": (summary.get("evaluation") or {}).get("mean_return")}
    limits = (word.removeprefix("stop.").split("=") for word in budget)
    return any((reached.get(name) or 0.0) >= float(limit) for name, limit in limits)

"""A job that nobody here needs to start: a process that another coordinator started works on it, or has finished it."""

from __future__ import annotations

import time

from rlrun.errors import RunDirError
from rlrun.rundir import RunDir
from rlrun.sweep.book import Entry
from rlrun.sweep.expansion import changeable
from rlrun.sweep.task import STOPPED

LOOK = 1.0  # seconds between two looks at its status


class Elsewhere:
    """A job at work, as its status tells: it is followed until it ends."""

    def __init__(self, entry: Entry, run: RunDir) -> None:
        self.entry = entry
        self.run = run
        self._left = False
        self._next = 0.0

    @classmethod
    def of(cls, entry: Entry, run: RunDir) -> Elsewhere | None:
        """Return the job, or None where a process has to be started for it."""
        job = cls(entry, run)
        return None if job.poll() == STOPPED else job

    def waits(self) -> bool:
        return False

    def poll(self) -> int | None:
        """Return 0 where all is done that the job's words ask for, 75 where it has to be gone on with."""
        if self._left:
            return STOPPED
        if time.monotonic() < self._next:
            return None
        self._next = time.monotonic() + LOOK
        status = self.run.read_status()["status"]
        if status == "running":
            return None
        return 0 if status == "completed" and self._heard() else STOPPED

    def terminate(self) -> None:
        """Follow it no more: it is not ours to be told anything."""
        self._left = True

    kill = terminate

    def _heard(self) -> bool:
        """Tell whether the run knows all words that may be news to a run that was finished, a further budget say."""
        try:
            known = self.run.read_overrides()
        except RunDirError:
            return False
        return all(word in known for word in changeable(self.entry.words))

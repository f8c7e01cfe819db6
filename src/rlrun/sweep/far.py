"""Jobs that a scheduler starts, on whichever machine and whenever it likes: what its launchers have in common."""

from __future__ import annotations

import os
import sys
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlrun.errors import RunDirError
from rlrun.files import reason
from rlrun.sweep.book import Entry
from rlrun.sweep.keeping import Errand, Keeper
from rlrun.sweep.launching import Tasks, Worded
from rlrun.sweep.leftovers import say_left
from rlrun.sweep.notes import Notes, code_in
from rlrun.sweep.places import open_own
from rlrun.sweep.task import STOPPED

LOOK = 0.5  # seconds between two looks at the notes of all jobs
LATE = 5.0  # seconds that a note may take from one machine to another
GRACE = 10.0  # seconds in which a keeper ends a process; then the scheduler is asked to
FAILED, KILLED = 1, -9


class Job:
    """A job that a scheduler has, or is about to get."""

    def __init__(self, far: Far, entry: Entry, keeper: Keeper) -> None:
        self.entry = entry
        self.keeper = keeper
        self.ticket = keeper.errand.ticket
        self.handle: Any = None  # of the scheduler, once it was submitted
        self.leaving = False
        self.cancelled = False
        self._far = far
        self._looks = 0  # at the last of which this was looked at, too
        self._killed: float | None = None  # when it was asked for
        self._missed: float | None = None  # since when the scheduler has it no more, without a word of its end

    def waits(self) -> bool:
        return "begun" not in self._words()

    def terminate(self) -> None:
        self.leaving = True
        self._far.notes.say(self.ticket, "leave")

    def kill(self) -> None:
        self._killed = self._killed or time.monotonic()
        self._far.notes.say(self.ticket, "kill")

    def poll(self) -> int | None:
        if self._far.look() == self._looks:
            return None
        self._looks = self._far.looks
        code = self._code()
        if code is not None:
            self._far.forget(self)
        return code

    def _words(self) -> set[str]:
        return self._far.words.get(self.ticket, set())

    def _code(self) -> int | None:
        """Return how it ended, by the words of its keeper, or for want of them."""
        code = code_in(self._words())
        if code is not None:
            return code
        if self._killed is not None and time.monotonic() - self._killed > GRACE:
            self._far.cancel([self.handle])
            self._far.lost = True
            return KILLED
        if self.leaving and self.waits() and (self.handle is None or self.cancelled):
            self._far.lost |= self.cancelled
            return STOPPED
        fate = None if self.handle is None else self._far.fate(self.handle)
        return None if fate is None else self._gone(fate)

    def _gone(self, fate: str) -> int | None:
        """Return how a job ended that the scheduler has no more; None while a word of its end may be on its way."""
        self._missed = self._missed or time.monotonic()
        if time.monotonic() - self._missed < LATE:
            return None
        if self.waits() and (self.leaving or "again" in self._words()):
            return STOPPED
        with suppress(RunDirError), os.fdopen(open_own(self.keeper.errand.log), "a", encoding="utf-8") as log:
            log.write(f"rlrun: {fate}\n")
        return FAILED


class Far(ABC):
    """Hand jobs to a scheduler, all that there are at a time, and hear of them by notes.

    Args:
        tasks: of the sweep.
    """

    def __init__(self, tasks: Tasks) -> None:
        self.tasks = tasks
        # Nobody has put anything there beforehand that a scheduler would take for its own.
        self.launches = tasks.folder / "launches" / uuid.uuid4().hex
        self.notes = Notes(self.launches / "notes")
        try:
            self.notes.folder.mkdir(parents=True)
        except OSError as error:
            raise RunDirError(f"{self.notes.folder} cannot be made: {reason(error)}") from error
        self.words: dict[str, set[str]] = {}  # of each job, as of the last look
        self.looks = 0
        self._jobs: list[Job] = []
        self.lost = False  # whether a job was let go of which nobody knows that it will not begin
        self._number = 0
        self._next = 0.0

    @abstractmethod
    def submit(self, keepers: Sequence[Keeper], entries: Sequence[Entry]) -> Sequence[Any]:
        """Have keepers started; return a handle for each."""

    @abstractmethod
    def fate(self, handle: Any) -> str | None:
        """Return what became of a keeper that is there no more; None while it waits or works."""

    @abstractmethod
    def cancel(self, handles: Sequence[Any]) -> None:
        """Start keepers no more, or end them where they work."""

    @abstractmethod
    def workers(self, entries: Iterable[Worded]) -> int:
        """Return how many of these jobs to submit at a time."""

    def gone(self, launch: Path, number: str) -> bool:
        """Tell whether the scheduler has a job of a launch, maybe another coordinator's, no more."""
        return False

    def close(self) -> None:
        """Let go of the scheduler: nothing is submitted any more."""
        say_left(self.launches)

    def start(self, entry: Entry, slot: int) -> Job:
        """Take a job; it is submitted with all others that are taken before the next look."""
        self._number += 1
        errand = Errand(
            self.tasks.task(entry),
            log=self.tasks.log(entry),
            notes=self.notes,
            ticket=f"{entry.key}-{self._number}",
            place=Path.cwd(),
            paths=tuple(path for path in sys.path if path),
            command=tuple(sys.argv),
        )
        self._jobs.append(Job(self, entry, Keeper(errand)))
        self._next = 0.0
        return self._jobs[-1]

    def look(self) -> int:
        """Submit what was taken, cancel what is to leave and has not begun, read all notes; return how often by now."""
        if time.monotonic() < self._next:
            return self.looks
        new = [job for job in self._jobs if job.handle is None and not job.leaving]
        handles = self.submit([job.keeper for job in new], [job.entry for job in new]) if new else []
        for job, handle in zip(new, handles, strict=True):
            job.handle = handle
        self.words = self.notes.all()
        unwanted = [job for job in self._jobs if job.leaving and job.waits() and job.handle and not job.cancelled]
        if unwanted:
            self.cancel([job.handle for job in unwanted])
        for job in unwanted:
            job.cancelled = True
        self.looks += 1
        self._next = time.monotonic() + LOOK
        return self.looks

    @property
    def idle(self) -> bool:
        """Whether no keeper that was sent is at work any more, or may begin."""
        return not self._jobs and not self.lost

    def forget(self, job: Job) -> None:
        """Let go of a job that ended."""
        self._jobs.remove(job)
        if code_in(self.words.get(job.ticket, set())) is not None:  # its keeper looks for no further word
            self.notes.forget(job.ticket)

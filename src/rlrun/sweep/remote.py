"""Jobs that a scheduler starts, on whichever machine and whenever it likes: what its launchers have in common.

The scheduler starts a keeper, which starts the job's process. The sweep's folder is all that the machines share: the
coordinator and the keepers speak by notes, empty files in the folder of a launch, named `<ticket>.<override>`. One is
there or is not, so none can be read by halves; one listing of their folder tells of all jobs, however many there are.

    begun            the job's process is at work                           said by the keeper
    again            it was stopped and saved; the scheduler starts it again
    ended.CODE       it ended with this exit code
    leave, kill      it shall leave in order; it shall be ended             said by the coordinator
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rlrun.config.expansion import Job
from rlrun.core.errors import RunDirError
from rlrun.runs.files import open_own, reason
from rlrun.sweep import children
from rlrun.sweep.children import STOPPED
from rlrun.sweep.job_store import SILENT, Entry, JobStore, Task
from rlrun.sweep.local import VISIBLE, Tasks, work

PAUSE = 0.1  # seconds between two looks of a keeper at its process
HEAR = 1.0  # … at its notes
LOOK = 0.5  # … of the coordinator at the notes of all jobs
LATE = 5.0  # seconds that a note may take from one machine to another
GRACE = 10.0  # seconds in which a keeper ends a process; then the scheduler is asked to
FAILED, KILLED = 1, -9
ENDED = "ended."
LEFT = "left"  # a file by which a coordinator says that it submits nothing any more
SUBMITTED, RESULT = "_submitted.pkl", "_0_result.pkl"  # as submitit names them


@dataclass
class RemoteRunner:
    """Called on the other machine; returns the exit code of the job's process.

    It waits for the end of that process, hands on what the coordinator says, and saves the job when the scheduler takes
    the machine away. It outlives the coordinator; the job's process does not outlive it.

    Attributes:
        task: the job.
        notes: the folder of the coordinator's notes; made by it, and nobody else knew its name before.
        ticket: under which the job's notes stand there.
        place: the folder in which the coordinator was started; relative paths count from it.
        paths: where the coordinator imports from.
        command: of the coordinator; a run notes by which it was made.
    """

    task: Task
    notes: Path
    ticket: str
    place: Path
    paths: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    _child: children.Child | None = field(default=None, init=False)
    _leaving: bool = field(default=False, init=False)

    def note(self, override: str) -> Path:
        """Return the file by which an override is said of this job."""
        return self.notes / f"{self.ticket}.{override}"

    def __call__(self) -> int:
        os.chdir(self.place)
        sys.path += [path for path in self.paths if path not in sys.path]
        sys.argv[:] = self.command
        if self.note("leave").exists() or self.note("kill").exists():
            return self._end(STOPPED)
        before = _on_terminate(lambda number, frame: self._ask())
        try:
            # A scheduler that starts several jobs in one process gives each its own accelerators.
            variables = {name: os.environ[name] for name in (VISIBLE,) if name in os.environ}
            self._child = children.start(work, self.task, log=self.task.log, variables=variables)
            self.note("begun").touch()  # it has imported everything by now
            return self._end(self._watch(self._child))
        finally:
            self._ask()  # where it is there still: something else than its end has led here
            _on_terminate(before)

    def _watch(self, child: children.Child) -> int:
        """Return the exit code of a process when it ended; hand on what the coordinator says."""
        heard, pending = 0.0, {"leave": self._ask, "kill": child.kill}
        while (code := child.poll()) is None:
            if time.monotonic() - heard > HEAR:
                heard = time.monotonic()
                for override in [override for override in pending if self.note(override).exists()]:
                    pending.pop(override)()
            time.sleep(PAUSE)
        return code

    def _end(self, code: int) -> int:
        self.note("begun").unlink(missing_ok=True)
        self.note(f"{ENDED}{code}").touch()
        return code

    def _ask(self) -> None:
        """Have the job leave in order; once, for a second signal would cut off what it saves."""
        if self._child is not None and not self._leaving:
            self._leaving = True
            self._child.terminate()

    def checkpoint(self) -> Any:
        """Save the job, as submitit asks when the machine is taken away; return what is to be started again.

        None: the job ended by itself meanwhile.
        """
        if self._child is not None:
            self._ask()
            code = self._child.wait()
            if code not in (STOPPED, -signal.SIGTERM):
                self._end(code)
                return None
        self.note("again").touch()
        self.note("begun").unlink(missing_ok=True)
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(replace(self))


def _on_terminate(handler: Any) -> Any:
    """Set what SIGTERM does; return what it did. Python allows it in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        return handler
    return signal.signal(signal.SIGTERM, handler)


class Submitted:
    """A job that a scheduler has, or is about to get."""

    def __init__(self, launcher: Remote, entry: Entry, keeper: RemoteRunner) -> None:
        self.entry = entry
        self.keeper = keeper
        self.handle: Any = None  # of the scheduler, once it was submitted
        self.overrides: set[str] = set()  # of its notes, as of the last look
        self.code: int | None = None  # how it ended, by then
        self.leaving = False
        self.cancelled = False
        self._launcher = launcher
        self._killed: float | None = None  # when it was asked for
        self._missed: float | None = None  # since when the scheduler has it no more, without a word of its end

    def waits(self) -> bool:
        return "begun" not in self.overrides

    def terminate(self) -> None:
        self.leaving = True
        self.keeper.note("leave").touch()

    def kill(self) -> None:
        self._killed = self._killed or time.monotonic()
        self.keeper.note("kill").touch()

    def poll(self) -> int | None:
        self._launcher.look()
        return self.code

    def look(self) -> int | None:
        """Return how it ended, by the overrides of its keeper, or for want of them."""
        for override in self.overrides:
            if override.startswith(ENDED):
                for describe_error in self.overrides:  # its keeper looks for no further word
                    self.keeper.note(describe_error).unlink(missing_ok=True)
                return int(override.removeprefix(ENDED))
        if self._killed is not None and time.monotonic() - self._killed > GRACE:
            self._launcher.cancel([self.handle])
            return KILLED
        if self.leaving and self.waits() and (self.handle is None or self.cancelled):
            return STOPPED
        fate = None if self.handle is None else self._launcher.fate(self.handle)
        return None if fate is None else self._gone(fate)

    def _gone(self, fate: str) -> int | None:
        """Return how a job ended that the scheduler has no more; None while a word of its end may be on its way."""
        self._missed = self._missed or time.monotonic()
        if time.monotonic() - self._missed < LATE:
            return None
        if self.waits() and (self.leaving or "again" in self.overrides):
            return STOPPED
        with suppress(RunDirError), os.fdopen(open_own(self.keeper.task.log), "a", encoding="utf-8") as log:
            log.write(f"rlrun: {fate}\n")
        return FAILED


class Remote(ABC):
    """Hand jobs to a scheduler, all that there are at a time, and hear of them by notes.

    Args:
        tasks: of the sweep.
    """

    def __init__(self, tasks: Tasks) -> None:
        self.tasks = tasks
        # Nobody has put anything there beforehand that a scheduler would take for its own.
        self.launches = tasks.folder / "launches" / uuid.uuid4().hex
        self.notes = self.launches / "notes"
        try:
            self.notes.mkdir(parents=True)
        except OSError as error:
            raise RunDirError(f"{self.notes} cannot be made: {reason(error)}") from error
        self._jobs: list[Submitted] = []
        self._number = 0
        self._next = 0.0

    @abstractmethod
    def submit(self, keepers: Sequence[RemoteRunner], entries: Sequence[Entry]) -> Sequence[Any]:
        """Have keepers started; return a handle for each."""

    @abstractmethod
    def fate(self, handle: Any) -> str | None:
        """Return what became of a keeper that is there no more; None while it waits or works."""

    @abstractmethod
    def cancel(self, handles: Sequence[Any]) -> None:
        """Start keepers no more, or end them where they work."""

    @abstractmethod
    def workers(self, jobs: Iterable[Entry | Job]) -> int:
        """Return how many of these jobs to submit at a time."""

    def gone(self, launch: Path, number: str) -> bool:
        """Tell whether the scheduler has a job of a launch, maybe another coordinator's, no more."""
        return False

    def close(self) -> None:
        """Let go of the scheduler, and say that nothing is submitted any more."""
        with suppress(OSError):  # then the folder stays
            (self.launches / LEFT).touch()

    def start(self, entry: Entry, slot: int) -> Submitted:
        """Take a job; it is submitted with all others that are taken before the next look."""
        self._number += 1
        task, paths = self.tasks.task(entry), tuple(path for path in sys.path if path)
        keeper = RemoteRunner(task, self.notes, f"{entry.key}-{self._number}", Path.cwd(), paths, tuple(sys.argv))
        self._jobs.append(Submitted(self, entry, keeper))
        self._next = 0.0
        return self._jobs[-1]

    def look(self) -> None:
        """Now and then submit what was taken, cancel what is to leave and has not begun, and note what has ended."""
        if time.monotonic() < self._next:
            return
        new = [job for job in self._jobs if job.handle is None and not job.leaving]
        handles = self.submit([job.keeper for job in new], [job.entry for job in new]) if new else []
        for job, handle in zip(new, handles, strict=True):
            job.handle = handle
        overrides: dict[str, set[str]] = defaultdict(set)
        for name in os.listdir(self.notes):
            ticket, _, override = name.partition(".")
            overrides[ticket].add(override)
        for job in self._jobs:
            job.overrides = overrides[job.keeper.ticket]
        unwanted = [job for job in self._jobs if job.leaving and job.waits() and job.handle and not job.cancelled]
        if unwanted:
            self.cancel([job.handle for job in unwanted])
        for job in unwanted:
            job.cancelled = True
        for job in self._jobs:
            job.code = job.look()
        self._jobs = [job for job in self._jobs if job.code is None]
        self._next = time.monotonic() + LOOK


def clear(launches: Path, job_store: JobStore, launcher: Remote | None) -> None:
    """Remove launches that are over, once all jobs of the sweep are done; of one that failed they may tell why.

    Args:
        launches: their folder.
        job_store: of the sweep.
        launcher: of the coordinator that asks; the last results of its own launch may take a moment.
    """
    try:
        folders = [path for path in launches.iterdir() if path.is_dir() and not path.is_symlink()]
    except OSError:  # there is none
        return
    until = time.monotonic() + LATE
    for launch in folders:
        if not all(
            entry.state in ("completed", "pruned") for entry in job_store.entries()
        ):  # others may be added just now
            return
        own = launcher is not None and launch == launcher.launches
        while own and not _is_over(launch, launcher) and time.monotonic() < until:
            time.sleep(PAUSE)
        if _is_over(launch, launcher):
            shutil.rmtree(launch, ignore_errors=True)  # on a network's disk a file that is open still may stay


def _is_over(launch: Path, launcher: Remote | None) -> bool:
    """Tell whether nobody can need the folder of a launch any more.

    A keeper needs it from when it is submitted, which may be long before it begins, until submitit has written what
    came of it. So a launch is over when its coordinator submits nothing any more, and each job has a result, or the
    scheduler says that it has it no more. Where nobody can tell, the folder stays.
    """
    try:
        names = {path.name: path.stat().st_mtime for path in launch.iterdir()}
    except OSError:  # somebody else removes it
        return False
    jobs = [name.removesuffix(SUBMITTED) for name in names if name.endswith(SUBMITTED)]
    if LEFT not in names and (not jobs or time.time() - max(names.values()) < SILENT):
        return False  # its coordinator may be at work
    pending = [job for job in jobs if f"{job}{RESULT}" not in names]
    return all(launcher is not None and launcher.gone(launch, job) for job in pending)

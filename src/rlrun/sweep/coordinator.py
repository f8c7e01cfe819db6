"""Start the jobs of a sweep, watch them, and note how they end."""

from __future__ import annotations

import math
import os
import re
import signal
import socket
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, TypeAlias

from rlrun.config.expansion import changeable
from rlrun.core.errors import RunDirError
from rlrun.runs import processes
from rlrun.runs.directory import RunDir
from rlrun.runs.files import NOTE_BYTES, head, known
from rlrun.runs.processes import TWICE, describe_exit, handled
from rlrun.runs.progress import counted_updates, last_line, number_of, quiet_for
from rlrun.sweep.children import STOPPED, Child
from rlrun.sweep.job_store import SILENT, Entry, JobStore, State, place_of
from rlrun.sweep.local import Local
from rlrun.sweep.remote import LATE, Remote, Submitted

if TYPE_CHECKING:
    from rlrun.sweep.search import Search

BUDGET = re.compile(r"stop\.[a-z_]+=[0-9][0-9_.e+-]{0,31}", re.ASCII)
PAUSE = 0.01  # seconds between two looks at the jobs
REST = 0.5  # seconds between two looks for jobs to claim, if none was there and none has ended since
AGAIN = 5.0  # seconds until a job is claimed again whose process stopped unasked: another process may work on it
BEAT = SILENT / 6  # seconds between two heartbeats
WATCH = 1.0  # seconds between two looks at the heartbeat of a job


Launcher: TypeAlias = Local | Remote


@dataclass
class Working:
    """A job that a coordinator has begun.

    Attributes:
        log: what its process prints.
        begun: seconds since 1970.
        watched: when its heartbeat was last looked at.
        why: the reason why it was killed.
        stop_requested: whether it was asked to stop.
        code: exit code of its process, once that has exited.
        exited: when its process exited, on the monotonic clock.
    """

    entry: Entry
    process: Child | Submitted
    run: RunDir
    log: Path
    begun: float = field(default_factory=time.time)
    watched: float = 0.0
    why: str | None = None
    stop_requested: bool = False
    code: int | None = None
    exited: float = 0.0

    def poll(self) -> int | None:
        """Return the exit code; 0 only if the run is completed, which other machines may see some seconds later."""
        if self.code is None:
            self.code, self.exited = self.process.poll(), time.monotonic()
        if self.code == 0 and not is_completed(self.run, self.entry.overrides):
            if time.monotonic() - self.exited < LATE:
                return None
            self.code, self.why = 1, "its process left with exit code 0 before the run was completed"
        return self.code

    def leave(self, *, again: bool = False) -> None:
        """Ask it to stop; once unless `again`, because a second signal interrupts its checkpoint."""
        if again or not self.stop_requested:
            self.stop_requested = True
            self.process.terminate()

    def end_if_hung(self, stall: float | None) -> None:
        """Kill it if its heartbeat stopped, or if it made no progress for `stall` seconds."""
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


@dataclass
class Limits:
    """When to give up.

    Attributes:
        failures: of jobs, after which no job is started and running jobs are asked to stop; None = never.
        retries: further attempts of a failed job.
        stall: seconds without any sign of progress after which a job counts as hung; None = never.
    """

    failures: int | None = None
    retries: int = 0
    stall: float | None = None


class Coordinator:
    """Keep `workers` jobs running until no job is left.

    Any number of coordinators may work on one sweep, on any machine that sees its folder.

    Args:
        folder: of the sweep.
        job_store: its jobs.
        launcher: starts them.
        workers: jobs that run at a time.
        limits: when to give up.
        show: called with the entries of the job store, whenever something changed and now and then.
        source: a search, which adds jobs while others run, and prunes some.
    """

    def __init__(
        self,
        folder: Path,
        job_store: JobStore,
        launcher: Launcher,
        *,
        workers: int,
        limits: Limits,
        show: Callable[[list[Entry]], None],
        source: Search | None = None,
    ) -> None:
        self.folder = folder
        self.job_store = job_store
        self.launcher = launcher
        self.workers = workers
        self.limits = limits
        self.show = show
        self.source = source
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self.failures = 0
        self.left: int | None = None  # the signal on which this stops
        self._working: dict[int, Working] = {}  # by place
        self._heard = self._heeded = 0  # signals
        self._heard_at = -math.inf
        self._beat = 0.0
        self._shown = 0.0
        self._rests = 0.0  # until then nothing more is claimed

    def run(self) -> int:
        """Run all jobs; return the exit code.

        0: every job is completed, or another coordinator works on it. 1: some failed. 75: a signal came.
        """
        # Signals are handled between two steps of the loop. During a step a job may be started and not be listed yet.
        with handled(self._hear, *processes.stops()):
            self.job_store.free(_is_gone)
            while True:
                self._heed()
                changed = self._look()
                if self._open() and (changed or time.monotonic() >= self._rests):
                    changed |= self._fill()
                if not self._working and (not self._open() or not self._more()):
                    break
                self._tell(changed)
                time.sleep(PAUSE)
        entries = self.job_store.entries()
        self.show(entries)
        if self.left is not None:
            return STOPPED
        return 1 if any(entry.state == "failed" for entry in entries) else 0

    def _open(self) -> bool:
        """Return True if further jobs may be started."""
        return self.left is None and (self.limits.failures is None or self.failures < self.limits.failures)

    def _more(self) -> bool:
        """Return True if jobs wait that could be claimed, now or soon, or may be added."""
        return (self.source is not None and not self.source.over()) or any(
            entry.state == "pending" for entry in self.job_store.entries()
        )

    def _fill(self) -> bool:
        """Start a job in each free slot; return True if any was started."""
        begun, since = False, time.monotonic()
        for slot in range(self.workers):
            if slot in self._working:
                continue
            if not self._open():  # a signal came meanwhile
                break
            entry = self.job_store.claim(self.owner)
            if entry is None and self.source is not None and self.source.offer():
                entry = self.job_store.claim(self.owner)
            if entry is None:
                self._rests = time.monotonic() + REST
                break
            self._begin(entry, slot)
            begun = True
            if time.monotonic() - since > BEAT:  # a heartbeat is due before the rest
                break
        return begun

    def _begin(self, entry: Entry, slot: int) -> None:
        """Start a process for a job, unless it is completed or another process works on it.

        A process of an earlier coordinator may still work on it, on another machine. Then the job waits for its end.
        """
        run, log = RunDir(self.folder / place_of(entry)), self.folder / "logs" / f"{entry.key}.txt"
        status = run.read_status()["status"]
        if status == "running":
            self.job_store.end(self.owner, entry.key, "pending", delay=AGAIN)
            return
        if status == "completed" and is_completed(run, entry.overrides) and not _news(run, entry.overrides):
            self.job_store.end(self.owner, entry.key, "completed", code=0, overrides=entry.overrides)
            return
        try:
            self._working[slot] = Working(entry, self.launcher.start(entry, slot), run, log)
        except (OSError, EOFError, RunDirError) as error:
            self._note_failure(entry, 1, f"it cannot be started: {error or type(error).__name__}")

    def _look(self) -> bool:
        """Note which jobs have ended, and kill those that hang; return True if any ended."""
        any_exited = False
        for slot, job in list(self._working.items()):
            code = job.poll()
            if code is None:
                job.end_if_hung(self.limits.stall)
                continue
            del self._working[slot]
            self._note(job, code)
            any_exited = True
        keys = {job.entry.key: job for job in self._working.values()}
        leaving = self.source.look(news=any_exited) if self.source is not None else set()
        for key in leaving & set(keys):
            keys[key].leave()
        if keys and time.monotonic() - self._beat > BEAT:
            self._beat = time.monotonic()
            self._leave_lost(keys)
        return any_exited or bool(leaving)

    def _leave_lost(self, keys: Mapping[str, Working]) -> None:
        """Renew the claims on running jobs; stop those whose claim is lost."""
        lost = self.job_store.beat(self.owner, keys)
        pruned = {entry.key for entry in self.job_store.entries() if entry.state == "pruned"} if lost else set()
        for key in lost:
            if key in pruned:  # by its search, here or elsewhere
                keys[key].leave()
            else:  # this process was silent too long: another coordinator has it
                keys[key].process.kill()

    def _note(self, job: Working, code: int) -> None:
        if code == 0:
            self.job_store.end(self.owner, job.entry.key, "completed", code=0, overrides=job.entry.overrides)
        elif job.why is None and (code == STOPPED or (code == -signal.SIGTERM and (job.stop_requested or self.left))):
            self.job_store.end(self.owner, job.entry.key, "pending", code=code, delay=AGAIN)
        else:
            self._note_failure(job.entry, code, job.reason(code))

    def _note_failure(self, entry: Entry, code: int, why: str) -> None:
        again = entry.attempts < self.limits.retries
        state: State = "pending" if again else "failed"
        if self.job_store.end(self.owner, entry.key, state, code=code, error=why, counts=True) and not again:
            self.failures += 1
            if not self._open():
                self._ask_to_leave()

    def _tell(self, changed: bool) -> None:
        if changed or time.monotonic() - self._shown > 1.0:
            self._shown = time.monotonic()
            queued = {job.entry.key for job in self._working.values() if job.process.waits()}
            entries = self.job_store.entries()
            self.show([replace(entry, state="queued") if entry.key in queued else entry for entry in entries])

    def _ask_to_leave(self, *, again: bool = False) -> None:
        for job in self._working.values():
            job.leave(again=again)

    def _heed(self) -> None:
        """Pass signals on to the jobs; a first one only to jobs that were not asked to stop before."""
        while self._heeded < self._heard:
            self._heeded += 1
            self._ask_to_leave(again=self._heeded > 1)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        """Stop on a signal, with all jobs; a second one is passed on to them, too."""
        if number == processes.HANGUP and self.left is not None:  # the terminal is gone, and nobody insists
            return
        self.left, now = number, time.monotonic()
        if now - self._heard_at > TWICE:
            self._heard, self._heard_at = self._heard + 1, now


def _is_gone(owner: str) -> bool:
    """Return True if a coordinator was a process of this machine that has ended."""
    host, _, rest = owner.rpartition(":")[0].rpartition(":")
    if host != socket.gethostname() or not rest.isdecimal() or int(rest) < 1:
        return False
    try:
        os.kill(int(rest), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        pass
    return False


def _news(run: RunDir, overrides: Sequence[str]) -> bool:
    """Return True if overrides that a finished run may change are new to it, such as a larger budget."""
    try:
        return not {*changeable(overrides)} <= {*run.read_overrides()}
    except RunDirError:
        return True


def is_completed(run: RunDir, overrides: Sequence[str]) -> bool:
    """Return True if a run's files say that it was completed, for at least the budget of these overrides."""
    summary = known(run.summary)
    if (summary.get("status"), run.read_status()["status"]) != ("completed", "completed"):
        return False
    budget = [override for override in overrides if BUDGET.fullmatch(override)]
    recorded = head(run.overrides, NOTE_BYTES).decode(errors="replace").splitlines()
    if summary.get("stopped_by") is None or all(override in recorded for override in budget):
        return True
    evaluation = summary.get("evaluation")
    reached = {**summary, "mean_return": evaluation.get("mean_return") if isinstance(evaluation, dict) else None}
    reached["updates"] = counted_updates(summary)
    limits = (override.removeprefix("stop.").split("=") for override in budget)
    with suppress(ValueError):  # the files may be anybody's
        return any((number_of(reached.get(name)) or 0.0) >= float(limit) for name, limit in limits)
    return False

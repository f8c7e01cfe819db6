"""Start the jobs of a sweep, watch them, and record failures."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from rlrun.config.expansion import Job
from rlrun.core import processes
from rlrun.core.errors import RunDirError
from rlrun.core.processes import TWICE, describe_exit, handled
from rlrun.runs import lock as locks
from rlrun.runs.directory import RunDir
from rlrun.runs.progress import last_line, quiet_for
from rlrun.sweep.children import STOPPED
from rlrun.sweep.command import JobCommand
from rlrun.sweep.directory import JobStatus, SweepDir
from rlrun.sweep.launchers import Launcher, Process

if TYPE_CHECKING:
    from rlrun.sweep.search import Search

PAUSE = 0.01  # seconds between two checks of the processes
REST = 0.5  # seconds between two searches for pending jobs, if none has ended meanwhile
WATCH = 1.0  # seconds between two checks of the files of running jobs, and between two displays
AGAIN = 5.0  # seconds until a job that stopped by itself is started again
LATE = 30.0  # seconds that files may take from one machine to another


@dataclass
class Limits:
    """Limits at which a sweep gives up.

    Attributes:
        failures: number of failed jobs after which no job is started and running jobs are asked to stop; None = never.
        retries: further attempts of a failed job.
        stall: seconds without progress after which a job counts as hung; None = never.
    """

    failures: int | None = None
    retries: int = 0
    stall: float | None = None


@dataclass
class Attempt:
    """A job that this process has started.

    Attributes:
        failures: number of earlier failed attempts.
        quiet_since: last time when the job had not begun yet, in seconds since 1970.
        watched: monotonic time when its files were last checked.
        why: the reason why it was killed.
        asked: whether it was asked to stop.
        exited: monotonic time when it exited.
    """

    job: Job
    process: Process
    run: RunDir
    log: Path
    failures: int
    quiet_since: float = field(default_factory=time.time)
    watched: float = field(default_factory=time.monotonic)
    why: str | None = None
    asked: bool = False
    exited: float | None = None

    def stop(self, *, again: bool = False) -> None:
        """Ask it to save and stop; a second time only with `again`, as that interrupts its checkpoint."""
        if again or not self.asked:
            self.asked = True
            self.process.terminate()

    def watch(self, status: JobStatus, stall: float | None) -> None:
        """Stop it if it was pruned; kill it if it shows no sign of life, or no progress for `stall` seconds."""
        self.watched = time.monotonic()
        if status.state == "pruned":
            self.stop()
        if locks.is_held(self.run.lock) is False or not self.run.lock.exists():  # it is queued, or still imports
            self.quiet_since = time.time()
        self.why = self.why or quiet_for(self.run, self.log, since=self.quiet_since, stall=stall)
        if self.why is not None:
            self.process.kill()

    def reason(self, code: int) -> str:
        """Return the reason of its failure in one line."""
        if self.why is not None:
            return self.why
        if code == 0:
            return "its process left with exit code 0 before the run was completed"
        if code == -signal.SIGKILL:
            return "killed by SIGKILL: by hand, or for want of memory"
        if code < 0:
            return describe_exit(code).removeprefix("it was ")
        return last_line(self.log) or f"exit code {code}"


class Signals:
    """The received signals, on which a scheduler stops with all its jobs."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self._passed_on = 0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Record a signal; two at almost the same time count once, and a later SIGHUP is ignored."""
        now = time.monotonic()
        if not self.times or (number != processes.HANGUP and now - self.times[-1] > TWICE):
            self.times.append(now)

    def pass_on(self, attempts: Iterable[Attempt]) -> None:
        """Ask jobs to stop, and pass on further signals, which interrupt their checkpoints."""
        for attempt in attempts:
            attempt.stop()
            for _ in range(max(self._passed_on, 1), len(self.times)):
                attempt.stop(again=True)
        self._passed_on = len(self.times)


def schedule(
    sweep: SweepDir,
    launcher: Launcher,
    command: Callable[[Job], JobCommand],
    *,
    workers: int,
    limits: Limits,
    show: Callable[[list[JobStatus]], None],
    search: Search | None = None,
) -> int:
    """Keep `workers` jobs running until all jobs of a sweep have ended, here or elsewhere; return the exit code.

    Several processes may do so for one sweep, on all machines that share its folder.

    Args:
        sweep: with the jobs.
        launcher: starts them.
        command: returns the command of a job.
        workers: number of jobs that run at a time.
        limits: at which to give up.
        show: called with the states of all jobs, after each change and periodically.
        search: adds jobs while others run, and prunes some.

    Returns:
        0 if all jobs are completed or pruned, 1 if some failed, 75 after a signal.
    """
    running: dict[int, Attempt] = {}  # by slot
    later: dict[str, float] = {}  # job that stopped by itself -> time of its next start
    signals, failed = Signals(), 0
    rest = shown = 0.0

    def ready(now: float) -> list[Job]:
        """Return the jobs that may start now."""
        taken = {attempt.job.key for attempt in running.values()}
        taken |= {key for key, at in later.items() if at > now}
        return [job for job, state, *_ in sweep.statuses() if state == "pending" and job.key not in taken]

    # Signals take effect between two iterations: within one, a started job may not be listed yet.
    with handled(signals, *processes.stops()):
        while True:
            now, changed = time.monotonic(), False
            pace = WATCH * max(1.0, len(running) / 100)  # a thousand jobs are checked every ten seconds
            for slot, attempt in list(running.items()):
                if (code := attempt.process.poll()) is None:
                    if now - attempt.watched > pace:
                        attempt.watch(sweep.status(attempt.job), limits.stall)
                elif (fails := _ended(sweep, attempt, code)) is not None:
                    del running[slot]
                    later[attempt.job.key] = now + AGAIN if code == STOPPED else 0.0
                    failed, changed = failed + fails, True
            if search is not None:
                search.look(news=changed)
            gives_up = bool(signals.times) or (limits.failures is not None and failed >= limits.failures)
            if gives_up:
                signals.pass_on(running.values())
            if not gives_up and (changed or now >= rest):
                free, jobs, rest = [slot for slot in range(workers) if slot not in running], ready(now), now + REST
                while len(jobs) < len(free) and search is not None and search.offer():
                    jobs = ready(now)
                with launcher.batch():
                    for slot, job in zip(free, jobs, strict=False):
                        if signals.times:
                            break
                        changed, before = True, sweep.status(job).attempts
                        try:
                            process = launcher.start(command(job), slot)
                            running[slot] = Attempt(job, process, sweep.run(job), sweep.log(job), before)
                        except (OSError, EOFError, RunDirError) as error:
                            sweep.fail(job, f"it cannot be started: {error or type(error).__name__}")
                            failed += sweep.status(job).state == "failed"
            if changed or now - shown > pace:
                statuses, shown = sweep.statuses(), now
                show(statuses)
                over = not any(status.state in ("pending", "running") for status in statuses)
                if not running and (gives_up or (over and (search is None or search.over()))):
                    break
            time.sleep(PAUSE)
    if signals.times:
        return STOPPED
    return 1 if any(status.state == "failed" for status in statuses) else 0


def _ended(sweep: SweepDir, attempt: Attempt, code: int) -> bool | None:
    """Record the end of an attempt; return whether its job has failed, or None while its files may still arrive."""
    status = sweep.status(attempt.job)
    if status.state in ("completed", "pruned"):
        return False
    attempt.exited = attempt.exited or time.monotonic()
    if code == 0 and time.monotonic() - attempt.exited < LATE:
        return None
    if attempt.why is None:
        stopped = code == STOPPED or (attempt.asked and code == -signal.SIGTERM)
        if stopped or status.state == "running":  # `running`: another process has it
            return False
    if status.attempts == attempt.failures:  # the job could not record its failure
        sweep.fail(attempt.job, attempt.reason(code))
    return sweep.status(attempt.job).state == "failed"

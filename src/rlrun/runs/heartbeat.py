"""Ownership of a run: one process holds its lock and keeps its heartbeat, and stops if it loses the run."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

from rlrun.core.errors import InProgress, LostRun, RlrunError, RunDirError
from rlrun.core.files import NOTE_BYTES, head, known, open_own, reason
from rlrun.runs import lock as locks
from rlrun.runs.directory import SILENT, RunDir

ATTEMPTS = 20  # to lock a run, as other processes lock it for a moment to test the lock
PAUSE = 0.05  # seconds between attempts
tokens: dict[Path, str] = {}  # runs on which this process works -> the token of its signature in the lock
_held: dict[Path, tuple[int, bool]] = {}  # runs that this process holds -> the open lock file, and whether it is locked
if hasattr(os, "register_at_fork"):  # a process that the user's code forks writes nothing to the run
    os.register_at_fork(after_in_child=lambda: tokens.update(dict.fromkeys(tokens, "")))


@contextmanager
def keep_fresh(run: RunDir, seconds: float = 30.0) -> Iterator[None]:
    """Keep a run's heartbeat fresh, from a thread of its own, for as long as a `with` block lasts."""
    over = threading.Event()

    def beat() -> None:
        require_own(run)
        run.write_status("running")

    def keep() -> None:
        while not over.wait(seconds):
            try:
                beat()
            except LostRun:  # training ends at its next record or checkpoint
                return
            except RlrunError:  # a full disk ends the run where its data is written, not here
                continue

    beat()
    thread = threading.Thread(target=keep, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def require_idle(run: RunDir) -> None:
    """Refuse a run that another process works on.

    Raises:
        InProgress: with process, host, last heartbeat, and a way out.
    """
    ours = run.path not in tokens and _held.get(run.path, (0, False))[1]
    status = run.read_status(ours=ours)
    if status["status"] == "running":
        silent = datetime.fromisoformat(status["heartbeat"]) + timedelta(seconds=SILENT)
        sure = not ours and locks.is_held(run.lock)
        raise InProgress(
            f"{run.path} is in progress: process {status['pid']} on {status['host']} works on it, last heartbeat "
            f"{status['heartbeat']}; end that process"
            + ("" if sure else f", or, if it is gone, wait until {silent.isoformat()}")
        )


def trace_of(run: RunDir) -> object:
    """Return a fingerprint of the run's status, which any process that works on the run changes."""
    try:
        about = run.status.stat()
    except OSError:
        return None
    return about.st_mtime_ns, about.st_ino, head(run.status, NOTE_BYTES)


@contextmanager
def hold_run(run: RunDir) -> Iterator[tuple[int, bool]]:
    """Keep other processes from a run, even before it is made, as long as a `with` block lasts.

    Yields the run's lock as an open file, and whether it could be locked. Nested blocks share the lock.

    Raises:
        InProgress: another process holds it.
        RunDirError: the lock is not a plain file.
    """
    if run.path in _held:
        yield _held[run.path]
        return
    handle, locked = _locked(run)
    _held[run.path] = handle, locked
    try:
        yield handle, locked
    finally:
        del _held[run.path]
        locks.release(handle)


@contextmanager
def lock_run(run: RunDir, trace: object = ...) -> Iterator[None]:
    """Hold the run lock, and sign it, as long as a `with` block lasts; of two processes that try, one is refused.

    Args:
        run: the run.
        trace: result of `trace_of` before the run was read; it must be unchanged.

    Raises:
        RunDirError: another process works on the run, or did so since `trace_of`.
        RlrunError: the lock cannot be written.
    """
    with hold_run(run) as (handle, locked):
        require_idle(run)
        if trace is not ... and trace_of(run) != trace:
            raise RunDirError(f"{run.path} was continued by another process meanwhile; try again")
        try:
            token = locks.sign(handle, locked=locked)
        except OSError as error:
            raise RlrunError(f"{run.lock} cannot be written: {reason(error)}") from error
        tokens[run.path] = token
        try:
            run.write_status("running")
            yield
        finally:
            tokens.pop(run.path, None)


def require_own(run: RunDir) -> None:
    """Refuse to write to a run that another process has taken over from this one.

    Raises:
        LostRun: naming the other process.
    """
    token = tokens.get(run.path)
    if token is None:
        return
    signature = known(run.lock)
    if signature.get("token", token) != token:
        raise LostRun(
            f"{run.path} was taken over by process {signature.get('pid')} on {signature.get('host')}; "
            "this process stops, and writes nothing more to it"
        )


def _locked(run: RunDir) -> tuple[int, bool]:
    """Return a run's lock as an open file, and whether it could be locked: some file systems cannot.

    Raises:
        RunDirError: another process holds it, or it is not a plain file.
    """
    handle = open_own(run.lock)
    try:
        for _ in range(ATTEMPTS):
            if locks.hold(handle):
                return handle, True
            time.sleep(PAUSE)
    except OSError:
        return handle, False
    os.close(handle)
    require_idle(run)
    raise InProgress(f"{run.path} is in progress: another process has locked {run.lock}; end that process")

"""Who works on a run: a heartbeat while somebody does, and taking over a run that nobody works on."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rlrun.errors import RlrunError, RunDirError
from rlrun.files import NOTE_BYTES, read_bytes
from rlrun.rundir import RunDir


class Heartbeat:
    """Keep a run's status fresh, from a thread of its own, for as long as a `with` block lasts."""

    def __init__(self, run: RunDir, *, seconds: float = 30.0) -> None:
        self._beat: Callable[[], None] = lambda: run.write_status("running")
        self._seconds = seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._beat()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _keep(self) -> None:
        while not self._over.wait(self._seconds):
            try:
                self._beat()
            except RlrunError:  # a full disk ends the run where its data is written, not here
                continue


def require_idle(run: RunDir) -> None:
    """Refuse a run that a process works on.

    Raises:
        RunDirError: with process, host and the time of its last sign of life.
    """
    status = run.read_status()
    if status["status"] == "running":
        raise RunDirError(
            f"{run.path} is in progress: process {status['pid']} on {status['host']} works on it, "
            f"last heard of at {status['heartbeat']}"
        )


def trace_of(run: RunDir) -> object:
    """Return what the next process that works on a run will change."""
    try:
        about = run.status.stat()
        return about.st_mtime_ns, about.st_ino, read_bytes(run.status, most=NOTE_BYTES, follow=True)
    except (OSError, RunDirError):
        return None


def take_over(run: RunDir, trace: object) -> None:
    """Become the one process that works on a run; of two that try at once, one is refused.

    Args:
        run: the run.
        trace: what `trace_of` told before anything of the run was read: what was read has to be true still.

    Raises:
        RunDirError: a process works on it, or one did since then.
    """
    with _alone(run.checkpoints):
        require_idle(run)
        if trace_of(run) != trace:
            raise RunDirError(f"{run.path} was gone on with by another process meanwhile; try again")
        run.write_status("running")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one process of this machine at a time go through; where folders cannot be locked, all of them."""
    try:
        import fcntl

        handle = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        yield
        return
    try:
        with suppress(OSError):  # a network file system may be without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)

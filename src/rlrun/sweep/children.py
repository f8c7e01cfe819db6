"""Processes that start at once: children of one that has imported everything already.

Each is a process of its own, in a group of its own, with its own log; signals reach it alone. It ends in order, as by
SIGTERM, when the process that started it is gone.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import connection, forkserver, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rlrun.runs.files import open_own

STOPPED = 75  # exit code of what has left on request, to be resumed
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["rlrun.sweep.warm"])
# What may be sent to a whole group of processes, and is for the one that leads it.
OF_GROUPS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
ASKED = b"asked"
LOST = 255  # what `multiprocessing` takes for the exit code where nobody is left who could tell it


def prepare() -> None:
    """Begin to import what children are forked with; it takes some seconds, in which this process can continue.

    The process that they are forked from is deaf to signals, which would cut off what it is to say of its children.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, OF_GROUPS)
    try:
        resource_tracker.ensure_running()  # which lets some of them through
        signal.pthread_sigmask(signal.SIG_BLOCK, OF_GROUPS)
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Child:
    """What `subprocess.Popen` is, as far as it is asked: a process that gets signals, and is waited for."""

    def __init__(
        self, target: Callable[..., None], *args: Any, paths: Sequence[str], connection: Connection | None = None
    ) -> None:
        self.connection = connection  # closed with this process, of which the child may hear
        self._process = CONTEXT.Process(target=_begin, args=(target, *args))
        self._code: int | None = None
        prepare()
        before, sys.path[:] = [*sys.path], paths
        main = vars(sys.modules["__main__"])  # nameless, or the child runs a user's script that calls `main` unguarded
        names: dict[str, Any] = {name: main[name] for name in ("__file__", "__spec__") if name in main}
        main.update(dict.fromkeys(names))
        try:
            self._process.start()
        finally:
            sys.path[:] = before
            main.update(names)
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def waits(self) -> bool:
        return False

    def poll(self) -> int | None:
        """Return the exit code; 75 where nobody knows it: then what it leaves behind shows how far it came."""
        if self._code is None:
            self._look(0.0)
        return self._code

    def _look(self, timeout: float | None) -> None:
        """Wait for the exit code, and read it before `multiprocessing` does, for which 255 and nothing are the same."""
        popen: Any = self._process._popen  # type: ignore[attr-defined]
        if popen.returncode is None:
            if not connection.wait([self._process.sentinel], timeout):
                return
            with suppress(OSError, EOFError):
                self._code = popen.returncode = forkserver.read_signed(self._process.sentinel)
                return
        # Else it was read when another process was started, or nobody knows it.
        self._code = STOPPED if popen.returncode in (None, LOST) else popen.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to leave in order; the end of this process is no second time."""
        if self.connection is not None:
            with suppress(OSError):  # it has just ended
                self.connection.send_bytes(ASKED)
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it with all that it has forked, which may be what hangs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has no group of its own yet
                os.killpg(self.pid, signal.SIGKILL)
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        if self._code is None:
            self._look(timeout)
        code = self._code
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code


def start(work: Callable[..., int], *args: Any, log: Path, variables: Mapping[str, str] | None = None) -> Child:
    """Start a child that calls a function and exits with what it returns; what it prints is added to a file.

    variables: of its environment, next to those of this process.

    Raises:
        RunDirError: the file cannot be written.
        OSError: there is no room for another process.
    """
    os.close(open_own(log))  # else its process would end without a word
    theirs, ours = CONTEXT.Pipe(duplex=False)
    paths = [os.getcwd(), *sys.path]  # `work` can be read where its module can be imported
    try:
        return Child(_serve, theirs, str(log), dict(variables or {}), work, args, paths=paths, connection=ours)
    finally:
        theirs.close()


def _begin(target: Callable[..., None], *args: Any) -> None:
    """Hear again what the process does not that this was forked from."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # schedulers send it to a remote runner's descendants
    signal.pthread_sigmask(signal.SIG_UNBLOCK, OF_GROUPS)
    target(*args)


def _serve(
    parent: Connection, log: str, variables: Mapping[str, str], work: Callable[..., int], args: Sequence[Any]
) -> None:
    # Else envs in processes would be asked of a server of this process, and each would import everything again.
    multiprocessing.set_start_method("fork", force=True)
    os.setsid()
    os.environ.update(variables)
    handle = open_own(Path(log))
    for number in (1, 2):
        os.dup2(handle, number)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored below a shell that runs this in its background
    threading.Thread(target=_leave_with, args=(parent, os.getpid()), daemon=True).start()
    sys.exit(work(*args))


def _leave_with(parent: Connection, own: int) -> None:
    """Wait until the other end of a pipe is closed, then end this process in order, unless it was asked to before."""
    try:
        parent.recv_bytes()  # `ASKED`
    except (EOFError, OSError):
        os.kill(own, signal.SIGTERM)

"""Child processes that start quickly, because they are forked from a server that has imported everything.

Each has its own process group and its own log. It gets SIGTERM when the process that started it ends.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection, forkserver, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rlrun.core.files import open_own

STOPPED = 75  # exit code of a process that stopped on request, to be resumed
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["rlrun.sweep.preload"])
# Signals that a terminal or scheduler may send to a whole group of processes.
OF_GROUPS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
ASKED = b"asked"
GRACE = 300.0  # seconds for a child to end after its parent has ended; then it is killed
SAFE_PATH, OURS = "PYTHONSAFEPATH", "rlrun"  # a variable of Python, and its value if the user has not set it
LOST = 255  # exit code from `multiprocessing` if the fork server has ended, so that the real code is unknown


@contextmanager
def safe_path() -> Iterator[None]:
    """Keep interpreters that start in this context from importing from the current folder, which may be a sweep's."""
    is_set = SAFE_PATH in os.environ
    os.environ.setdefault(SAFE_PATH, OURS)
    try:
        yield
    finally:
        if not is_set:
            del os.environ[SAFE_PATH]


def prepare() -> None:
    """Start the fork server; its imports take some seconds, while this process continues.

    The server blocks signals, because it must live to report the exit codes of its children.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, OF_GROUPS)
    try:
        with safe_path():
            resource_tracker.ensure_running()  # called first, as it unblocks some signals
            signal.pthread_sigmask(signal.SIG_BLOCK, OF_GROUPS)
            forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Child:
    """A process forked by the fork server, with the methods of `subprocess.Popen` that sweeps use."""

    def __init__(
        self, target: Callable[..., None], *args: Any, paths: Sequence[str], connection: Connection | None = None
    ) -> None:
        self.connection = connection  # closes when this process ends; then the child stops
        self._process = CONTEXT.Process(target=_begin, args=(target, *args))
        self._code: int | None = None
        prepare()
        before, sys.path[:] = [*sys.path], paths
        main = vars(sys.modules["__main__"])  # hidden, or the child runs an unguarded user script
        names: dict[str, Any] = {name: main[name] for name in ("__file__", "__spec__") if name in main}
        main.update(dict.fromkeys(names))
        try:
            self._process.start()
        finally:
            sys.path[:] = before
            main.update(names)
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        """Return the exit code, or None; 75 if it is unknown, as the run's files then show the progress."""
        if self._code is None:
            self._look(0.0)
        return self._code

    def _look(self, timeout: float | None) -> None:
        """Read the exit code before `multiprocessing` does, which would replace an unknown one by 255."""
        popen: Any = self._process._popen  # type: ignore[attr-defined]
        if popen.returncode is None:
            if not connection.wait([self._process.sentinel], timeout):
                return
            with suppress(OSError, EOFError):
                self._code = popen.returncode = forkserver.read_signed(self._process.sentinel)
                return
        # Otherwise the code was read when another process was started, or it is unknown.
        self._code = STOPPED if popen.returncode in (None, LOST) else popen.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to stop; it gets no second signal when this process ends."""
        if self.connection is not None:
            with suppress(OSError):  # it has just ended
                self.connection.send_bytes(ASKED)
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it and all processes that it forked, since one of these may hang."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has not made its own group yet
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
    """Start a child that calls a function and exits with its result; its output is appended to a file.

    variables: for its environment, in addition to those of this process.

    Raises:
        RunDirError: the file cannot be written.
        OSError: the system refuses another process.
    """
    os.close(open_own(log))  # fails here, as the child could report no error
    theirs, ours = CONTEXT.Pipe(duplex=False)
    paths = [path or os.getcwd() for path in sys.path]  # so that the child can import the module of `work`
    try:
        return Child(_serve, theirs, str(log), dict(variables or {}), work, args, paths=paths, connection=ours)
    finally:
        theirs.close()


def _begin(target: Callable[..., None], *args: Any) -> None:
    """Unblock the signals that the fork server blocks."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # schedulers send it to a remote runner's descendants
    signal.pthread_sigmask(signal.SIG_UNBLOCK, OF_GROUPS)
    target(*args)


def _serve(
    parent: Connection, log: str, variables: Mapping[str, str], work: Callable[..., int], args: Sequence[Any]
) -> None:
    # Otherwise each env in a process would be forked from a new server, which would import everything again.
    multiprocessing.set_start_method("fork", force=True)
    os.setsid()
    os.environ.update(variables)
    handle = open_own(Path(log))
    for number in (1, 2):
        os.dup2(handle, number)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in background processes
    threading.Thread(target=_leave_with, args=(parent, os.getpid()), daemon=True).start()
    sys.exit(work(*args))


def _leave_with(parent: Connection, own: int) -> None:
    """Send SIGTERM to this process when the other end of a pipe closes, unless it was already asked to stop.

    If it hangs, it is killed after `GRACE` seconds with all processes that it forked, which releases its run.
    """
    try:
        parent.recv_bytes()  # `ASKED`
    except (EOFError, OSError):
        os.kill(own, signal.SIGTERM)
        time.sleep(GRACE)
        os.killpg(own, signal.SIGKILL)

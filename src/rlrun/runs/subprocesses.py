"""Subprocesses: fresh interpreters that run nothing of the program that started them."""

import ctypes
import os
import signal
import subprocess
import sys
from contextlib import suppress
from multiprocessing.connection import Connection

PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>


def start(module: str, theirs: Connection) -> subprocess.Popen[bytes]:
    """Start one that finds the same modules and calls `serve` of one of them, with a connection and this process's id.

    It leads a process group, so that signals are the parent's.
    """
    command = f"from {module} import serve; serve({theirs.fileno()}, {os.getpid()})"
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    return subprocess.Popen(
        [sys.executable, "-P", "-W", "ignore", "-c", command],
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": paths},
        pass_fds=[theirs.fileno()],
        process_group=0,
    )


def end_of(process: subprocess.Popen[bytes], seconds: float = 1.0) -> str:
    """Describe how a process ended, or is about to end."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    return describe_exit(process.returncode)


def describe_exit(code: int | None) -> str:
    """Return in words what an exit code says of a process; None = it has not ended."""
    if code is None:
        return "it broke the connection"
    if code >= 0:
        return f"it left with exit code {code}"
    known = -code in [*signal.Signals]  # a real-time signal has no name
    return f"it was killed by {signal.Signals(-code).name if known else f'signal {-code}'}"


def end_with_parent() -> None:
    """Have the system kill this process when the thread ends that has started it; nothing where it cannot."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def let_go(process: subprocess.Popen[bytes], grace: float) -> bool:
    """Wait for the end of a process that was asked to leave, by force after some seconds; return whether it is gone."""
    for urge in (None, process.terminate, process.kill):
        if urge is not None:
            urge()
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace if urge is None else 1.0)
            break
    return process.poll() is not None

"""Processes: what signals do to them, and how they leave."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>
# The interrupt that a handler raises is lost where python swallows what is raised, in a finaliser for one;
# so the handlers of a run look here, too.
received: list[int] = []

STOPS = tuple(  # signals on which a run stops in order; not every system has all
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, name)
)
HANGUP = getattr(signal, "SIGHUP", None)  # the terminal is gone
TWICE = 1.0  # seconds in which signals are one: `timeout` sends it to a process and to the group that it is in
_counted: dict[int, float] = {}  # signal -> when it last counted, on the monotonic clock


def stops() -> tuple[int, ...]:
    """Return the signals on which a run stops in order; below `nohup` the end of the terminal is none of them."""
    return tuple(number for number in STOPS if number != HANGUP or signal.getsignal(number) is not signal.SIG_IGN)


def repeated(number: int) -> bool:
    """Return True if a signal is the one that came a moment ago, sent once more; any other one counts.

    After another signal, SIGHUP never counts: it says that the terminal is gone, and nobody insists by it.
    """
    now = time.monotonic()
    if number == HANGUP and _counted:
        return True
    if now - _counted.get(number, -TWICE) < TWICE:
        return True
    _counted[number] = now
    return False


def restart() -> None:
    """Let the next signal count, whatever came before."""
    _counted.clear()


@contextmanager
def handled(handler: Any, *numbers: int) -> Iterator[None]:
    """Handle signals as long as the block lasts; in the main thread only, as python allows it nowhere else."""
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in numbers if main}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def listen() -> None:
    """Let a signal end what comes before training, imports and building, as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():  # python allows handlers nowhere else
        return
    owner = os.getpid()
    restart()

    def stop(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a worker, forked from here, dies of it as of any other signal
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        if repeated(number):
            return
        received.append(number)
        raise KeyboardInterrupt

    for number in stops():
        if number != signal.SIGINT:
            signal.signal(number, stop)


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


def tune_process() -> None:
    """Look for no garbage among the modules that are loaded so far.

    Python would look through all of torch now and then, and several times when the process ends. On a Zen 4 core it
    saves 0.5 s of a command. It holds for the rest of the process, so only commands and jobs of sweeps call it.
    """
    gc.freeze()

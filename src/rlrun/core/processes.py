"""Signals that stop a run, and the ends of processes."""

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
# Python swallows the interrupt that a handler raises inside a finalizer, so the handlers of a run look here, too.
received: list[int] = []

STOPS = tuple(  # signals on which a run stops in order; not every system has all
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, name)
)
HANGUP = getattr(signal, "SIGHUP", None)  # the terminal is gone
TWICE = 1.0  # seconds in which equal signals count once: `timeout` sends one to a process and one to its group
_counted: dict[int, float] = {}  # signal -> when it last counted, on the monotonic clock


def stops() -> tuple[int, ...]:
    """Return the signals on which a run stops in order; all but SIGHUP below `nohup`."""
    return tuple(number for number in STOPS if number != HANGUP or signal.getsignal(number) is not signal.SIG_IGN)


def repeated(number: int) -> bool:
    """Return True if a signal repeats the one of a moment ago; all others count.

    After another signal SIGHUP counts as repeated: the terminal closes by itself, without a second request to stop.
    """
    now = time.monotonic()
    if number == HANGUP and _counted:
        return True
    if now - _counted.get(number, -TWICE) < TWICE:
        return True
    _counted[number] = now
    return False


def restart() -> None:
    """Forget earlier signals, so that the next one counts."""
    _counted.clear()


@contextmanager
def handled(handler: Any, *numbers: int) -> Iterator[None]:
    """Handle signals as long as the block lasts; only in the main thread, as Python allows handlers nowhere else."""
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in numbers if main}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def listen() -> None:
    """Let signals end imports and building, before training, as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():  # Python allows handlers nowhere else
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
    """Return in words how a process ended, by its exit code; None = it has not ended."""
    if code is None:
        return "it broke the connection"
    if code >= 0:
        return f"it left with exit code {code}"
    known = -code in [*signal.Signals]  # a real-time signal has no name
    return f"it was killed by {signal.Signals(-code).name if known else f'signal {-code}'}"


def end_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends; only on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def tune_process() -> None:
    """Look for no garbage among the modules that are loaded so far.

    Python would look through all of torch now and then, and several times when the process ends. On a Zen 4 core it
    saves 0.5 s of a command. It holds for the rest of the process, so only commands and jobs of sweeps call it.
    """
    gc.freeze()

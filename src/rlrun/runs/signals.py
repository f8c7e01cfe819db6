"""Signals that come before a run has handlers of its own, and which of them are one."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

# The interrupt that a handler raises is lost where python swallows what is raised, in a finaliser for one;
# so the handlers of a run look here, too.
received: list[int] = []

TWICE = 1.0  # seconds in which signals are one: `timeout` sends it to a process and to the group that it is in
_counted: dict[int, float] = {}  # signal -> when it last counted, on the monotonic clock


def repeated(number: int) -> bool:
    """Return True if a signal is the one that came a moment ago, sent once more; any other one counts."""
    now = time.monotonic()
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

    for name in ("SIGTERM", "SIGUSR1"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), stop)

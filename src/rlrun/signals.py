"""Signals that come before a run has handlers of its own."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

# The interrupt that a handler raises is lost where python swallows what is raised, in a finaliser for one;
# so whoever takes over looks here, too.
received: list[int] = []


def listen() -> None:
    """Let a signal end what comes before training, imports and building, as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():  # python allows handlers nowhere else
        return
    owner = os.getpid()

    def stop(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a worker, forked from here, dies of it as of any other signal
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        received.append(number)
        raise KeyboardInterrupt

    for name in ("SIGTERM", "SIGUSR1"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), stop)

"""Links to a worker in a thread or a process: they start it, send jobs, and end it.

The worker runs `unroll`. Both sides read from an `Inbox` that another thread fills, so neither can block the other.
"""

import copy
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from rlrun.collect.unroll import Give, Inbox, Leave, UnrollRecipe, unroll
from rlrun.core.errors import ConfigError
from rlrun.runs import processes

GRACE = 3.0  # seconds that a worker has to leave


class Link(ABC):
    """The main side of a worker; `rows` are its messages, closed once it has ended."""

    def __init__(self) -> None:
        self.rows, self._jobs = Inbox(), Inbox()

    def send(self, job: Any) -> None:
        """Send a job; never waits."""
        self._jobs.put(job)

    @abstractmethod
    def alive(self) -> bool:
        """Return True while it is running."""

    @abstractmethod
    def cause(self) -> str:
        """Return how it ended."""

    @abstractmethod
    def close(self) -> bool:
        """End the worker, by force after some seconds; return True if it has ended."""


class ThreadLink(Link):
    """A worker in a thread of this process."""

    def __init__(self, recipe: UnrollRecipe) -> None:
        super().__init__()
        # An environment may load a policy, which waits for no run but another one.
        run = partial(copy_context().run, self._run, recipe)
        self._thread = threading.Thread(target=run, name="unroll", daemon=True)
        self._thread.start()

    def _run(self, recipe: UnrollRecipe) -> None:
        try:
            unroll(lambda: recipe, self._jobs, lambda message: self.rows.put(copy.deepcopy(message)))
        finally:
            self.rows.close()

    def alive(self) -> bool:
        return self._thread.is_alive()

    def cause(self) -> str:
        return "it ended"

    def close(self) -> bool:
        self._jobs.put(Leave())
        self._thread.join(GRACE)
        return not self._thread.is_alive()


class ProcessLink(Link):
    """A worker in a new interpreter, which runs no code of the program that started it.

    `work` is its loop: it is called with a function that loads the recipe, its jobs, and a function that gives results.
    A thread sends and a thread receives, so a slow process never blocks the main one.

    Raises:
        ConfigError: some part of the recipe cannot be sent.
    """

    def __init__(self, recipe: Any, work: Callable[[Callable[[], Any], Inbox, Give], None] = unroll) -> None:
        super().__init__()
        try:
            packed = pickle.dumps((work, pickle.dumps(recipe, protocol=5)))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            way_out = "; async.kind=thread" if work is unroll else ""
            fault = str(error).splitlines()[0]
            raise ConfigError(f"env cannot be sent to a separate process: {fault}{way_out}") from error
        self._connection, child_end = Pipe()
        self._process = _start(child_end)
        child_end.close()
        self._jobs.put(packed)
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._write, self._read)]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        """ID of the process."""
        return self._process.pid

    def _write(self) -> None:
        with suppress(OSError):  # the worker has ended; readers of its rows get the error
            while (job := self._jobs.receive()) is not None:
                if isinstance(job, bytes):
                    self._connection.send_bytes(job)
                else:
                    self._connection.send(job)

    def _read(self) -> None:
        try:
            while True:
                self.rows.put(self._connection.recv())
        except (OSError, EOFError, pickle.UnpicklingError):
            pass
        finally:
            self.rows.close()

    def alive(self) -> bool:
        return self._process.poll() is None

    def cause(self) -> str:
        return processes.end_of(self._process)

    def kill(self) -> None:
        """End the process now; `rows` are closed then."""
        self._process.kill()

    def close(self, grace: float = GRACE) -> bool:
        self._jobs.put(Leave())
        self._jobs.close()
        ended = processes.let_go(self._process, grace)
        for thread in self._threads:
            thread.join(1.0)
        self._connection.close()
        return ended


def _start(child_end: Connection) -> subprocess.Popen[bytes]:
    return processes.start("rlrun.collect.links", child_end)


def serve(handle: int, parent: int) -> None:
    """Run the process of a `ProcessLink`, with the recipe and jobs of a connection.

    It ends with the process that started it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection, jobs = Connection(handle), Inbox()
    code = 1
    with suppress(OSError, EOFError):  # the parent has ended
        packed = connection.recv_bytes()
        threading.Thread(target=_listen, args=(connection, jobs, parent), daemon=True).start()
        work, recipe = pickle.loads(packed)
        work(partial(pickle.loads, recipe), jobs, partial(_give, connection))
        code = 0
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # skips cleanup, which takes time


def _give(connection: Connection, message: Any) -> None:
    """Send a message by value: a connection alone would put tensors into shared memory."""
    connection.send_bytes(pickle.dumps(message, protocol=5))


def _listen(connection: Any, jobs: Inbox, parent: int) -> None:
    """Receive jobs from the connection; end this process after its parent."""
    with suppress(OSError, EOFError):
        while os.getppid() == parent:
            if connection.poll(1.0):
                jobs.put(connection.recv())
    jobs.close()
    time.sleep(GRACE)
    os._exit(1)

"""Links to a worker in a thread, a process or an actor of Ray: they start it, send jobs, and end it.

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
from rlrun.runs.cluster import connect
from rlrun.runs.processes import leave, refused

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
    """

    def __init__(self, recipe: Any, work: Callable[[Callable[[], Any], Inbox, Give], None] = unroll) -> None:
        super().__init__()
        way_out = "; async.kind=thread" if work is unroll else ""
        packed = pickle.dumps((work, _packed(recipe, "a separate process", way_out)))
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


def _packed(recipe: Any, place: str, way_out: str = "") -> bytes:
    """Return a recipe as bytes.

    Raises:
        ConfigError: some part of it cannot be sent to that place.
    """
    try:
        return pickle.dumps(recipe, protocol=5)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(f"env cannot be sent to {place}: {str(error).splitlines()[0]}{way_out}") from error


class Host:
    """An actor of Ray, on any machine of its cluster: a worker in a thread, and its messages."""

    def __init__(self, paths: list[str], recipe: bytes) -> None:
        sys.path += [path for path in paths if path not in sys.path]  # folders of the user's modules
        self.link = ThreadLink(pickle.loads(recipe))

    def post(self, job: Any) -> None:
        """Receive a job."""
        self.link.send(job)

    def fetch(self, seconds: float) -> list[Any] | None:
        """Return the messages since the last call, after at most so many seconds; None at the end."""
        rows = self.link.rows
        messages = [first] if (first := rows.receive(seconds)) is not None else []
        if not messages and rows.closed:
            return None
        while (more := rows.receive(0.0)) is not None:
            messages.append(more)
        return messages


class RayLink(Link):
    """The main side of the actor; Ray is started and stopped, unless it is running."""

    def __init__(self, recipe: UnrollRecipe) -> None:
        super().__init__()
        self._ray, self._started = connect()
        self._why = "it ended"
        packed = _packed(recipe, "an actor")
        remote = self._ray.remote(num_cpus=0, max_restarts=0, concurrency_groups={"jobs": 1, "rows": 1})(Host)
        self._actor = remote.remote([path or os.getcwd() for path in sys.path], packed)
        self._post = self._actor.post.options(concurrency_group="jobs")
        self._fetch = self._actor.fetch.options(concurrency_group="rows")
        self._thread = threading.Thread(target=self._read, name="ray rows", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            while (messages := self._ray.get(self._fetch.remote(0.5))) is not None:
                for message in messages:
                    self.rows.put(message)
        except Exception as error:
            self._why = f"Ray lost it: {type(error).__name__}"
        finally:
            self.rows.close()

    def send(self, job: Any) -> None:
        self._post.remote(job)

    def alive(self) -> bool:
        return not self.rows.closed

    def cause(self) -> str:
        return self._why

    def close(self) -> bool:
        with suppress(Exception):  # the cluster may have ended
            self._post.remote(Leave())
        self._thread.join(GRACE)
        with suppress(Exception):
            self._ray.kill(self._actor)
        if self._started:
            with suppress(Exception):
                self._ray.shutdown()
        return True


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
        with refused():
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
    leave(1)

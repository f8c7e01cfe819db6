"""A worker: a second process that runs one function, and the messages between both."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from rlrun.core.errors import ConfigError, describe_error
from rlrun.core.processes import describe_exit, end_with_parent

GRACE = 3.0  # seconds that a worker has to leave

Give = Callable[[Any], None]


class Failed(NamedTuple):
    """Message: the worker failed."""

    line: str
    trace: str


@contextmanager
def failures(give: Give) -> Iterator[None]:
    """Send a failure of a `with` block as a message."""
    try:
        yield
    except (Exception, SystemExit) as error:
        give(Failed(describe_error(error), traceback.format_exc()))


class Inbox(SimpleQueue[Any]):
    """A queue that can be closed; a reader may wait for the next item."""

    closed = False  # True: nothing more will come

    def close(self) -> None:
        """Accept no more items."""
        self.closed = True
        self.put(None)  # wakes the reader

    def receive(self, seconds: float | None = None) -> Any:
        """Return the next item; None if time runs out or the queue is closed.

        seconds: to wait; None = for ever.
        """
        try:
            return self.get(not self.closed, seconds)
        except Empty:
            return None


class Worker:
    """A process that calls a function, in a new interpreter that runs no code of the program that started it.

    It ends with the process that started it. One thread sends and another receives, so a slow worker never blocks the
    main thread. Signals to the process group do not reach the worker.

    Args:
        target: called with the arguments, an `Inbox` of the jobs sent, and a function that sends messages back. It
            returns once the inbox is closed.
        args: must be picklable.

    Attributes:
        messages: messages of the function; the last one is `Failed` if it raised. Closed once the process has ended.

    Raises:
        ConfigError: an argument cannot be sent.
    """

    def __init__(self, target: Callable[..., None], *args: Any) -> None:
        try:
            packed = pickle.dumps((target, args), protocol=5)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ConfigError(f"env cannot be sent to a separate process: {str(error).splitlines()[0]}") from error
        self.messages, self._jobs = Inbox(), Inbox()
        self._connection, theirs = Pipe()
        self._process = start(theirs)
        theirs.close()
        self._jobs.put(packed)
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._write, self._read)]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        """ID of the process."""
        return self._process.pid

    def send(self, job: Any) -> None:
        """Send a job without waiting."""
        self._jobs.put(pickle.dumps(job, protocol=5))

    def _write(self) -> None:
        with suppress(OSError):  # the worker has ended; readers of its messages get the error
            while (packed := self._jobs.receive()) is not None:
                self._connection.send_bytes(packed)
            self._connection.send_bytes(b"")

    def _read(self) -> None:
        try:
            while True:
                self.messages.put(pickle.loads(self._connection.recv_bytes()))
        except (OSError, EOFError, pickle.UnpicklingError):
            pass
        finally:
            self.messages.close()

    def alive(self) -> bool:
        """Return True while it is running."""
        return self._process.poll() is None

    def cause(self) -> str:
        """Return how the process ended, after waiting up to a second for its end."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        return describe_exit(self._process.returncode)

    def close(self, grace: float = GRACE) -> bool:
        """Let the function return; end the process by force after some seconds; return True if it has ended."""
        self._jobs.close()
        for urge in (None, self._process.terminate, self._process.kill):
            if urge is not None:
                urge()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(grace if urge is None else 1.0)
                break
        for thread in self._threads:
            thread.join(1.0)
        self._connection.close()
        return not self.alive()


def start(theirs: Connection) -> subprocess.Popen[bytes]:
    """Start the process of a `Worker`, with this one's module path and a process group of its own."""
    command = f"from rlrun.core.worker import serve; serve({theirs.fileno()}, {os.getpid()})"
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    return subprocess.Popen(
        [sys.executable, "-P", "-W", "ignore", "-c", command],
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": paths},
        pass_fds=[theirs.fileno()],
        process_group=0,
    )


def serve(handle: int, parent: int) -> None:
    """Run a `Worker`'s process: receive the function, its arguments and jobs by a connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    connection, jobs, code = Connection(handle), Inbox(), 1

    def give(message: Any) -> None:
        """Send a message by value: a connection alone would put tensors into shared memory."""
        connection.send_bytes(pickle.dumps(message, protocol=5))

    with suppress(OSError, EOFError):  # the parent has ended
        packed = connection.recv_bytes()
        threading.Thread(target=_listen, args=(connection, jobs), daemon=True).start()
        with failures(give):
            target, args = pickle.loads(packed)
            if os.getppid() == parent:
                target(*args, jobs, give)
        code = 0
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # skips cleanup, which takes time


def _listen(connection: Connection, jobs: Inbox) -> None:
    """Receive jobs until the parent closes or ends; end this process `GRACE` seconds later."""
    with suppress(OSError, EOFError):
        while packed := connection.recv_bytes():
            jobs.put(pickle.loads(packed))
    jobs.close()
    time.sleep(GRACE)
    os._exit(1)

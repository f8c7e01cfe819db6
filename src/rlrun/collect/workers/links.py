"""How a worker is started, spoken to, and let go."""

from __future__ import annotations

import pickle
import subprocess
import threading
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Protocol

from rlrun import interpreter
from rlrun.collect.workers.inbox import Inbox
from rlrun.collect.workers.unroll import Leave, Recipe, copied, unroll
from rlrun.errors import ConfigError

GRACE = 3.0  # seconds that a worker has to leave


class Link(Protocol):
    """The main side of a worker."""

    rows: Inbox  # what it made; closed once it is gone

    def send(self, job: Any) -> None:
        """Leave a job for it; never waits."""

    def alive(self) -> bool:
        """Whether it may still make something."""

    def cause(self) -> str:
        """Of a worker that is gone: how it went."""

    def close(self) -> bool:
        """Let it go, by force after some seconds; return whether it is gone."""


class ThreadLink:
    """A worker in a thread of this process."""

    def __init__(self, recipe: Recipe) -> None:
        self.rows, self._jobs = Inbox(), Inbox()
        self._thread = threading.Thread(target=self._run, args=(recipe,), name="unroll", daemon=True)
        self._thread.start()

    def _run(self, recipe: Recipe) -> None:
        try:
            unroll(recipe, self._jobs, lambda message: self.rows.put(copied(message)))
        finally:
            self.rows.close()

    def send(self, job: Any) -> None:
        self._jobs.put(job)

    def alive(self) -> bool:
        return self._thread.is_alive()

    def cause(self) -> str:
        return "it ended"

    def close(self) -> bool:
        self._jobs.put(Leave())
        self._thread.join(GRACE)
        return not self._thread.is_alive()


class ProcessLink:
    """A worker in a process of its own, a fresh interpreter that runs nothing of the program that started it.

    A thread sends and a thread receives, so that a process that is slow to read or to write keeps nobody waiting.
    """

    def __init__(self, recipe: Recipe) -> None:
        try:
            begun = pickle.dumps(recipe, protocol=5)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            what = str(error).splitlines()[0]
            raise ConfigError(f"env cannot be sent to a process of its own: {what}; async.kind=thread") from error
        self.rows, self._jobs = Inbox(), Inbox()
        self._connection, theirs = Pipe()
        self._process = _start(theirs)
        theirs.close()
        self._jobs.put(begun)
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._write, self._read)]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    def _write(self) -> None:
        with suppress(OSError):  # it is gone, which whoever reads its rows is told
            while (job := self._jobs.get()) is not None:
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

    def send(self, job: Any) -> None:
        self._jobs.put(job)

    def alive(self) -> bool:
        return self._process.poll() is None

    def cause(self) -> str:
        return interpreter.end_of(self._process)

    def close(self) -> bool:
        self._jobs.put(Leave())
        self._jobs.close()
        gone = interpreter.let_go(self._process, GRACE)
        for thread in self._threads:
            thread.join(1.0)
        self._connection.close()
        return gone


def _start(theirs: Connection) -> subprocess.Popen[bytes]:
    return interpreter.start("rlrun.collect.workers.process", theirs)

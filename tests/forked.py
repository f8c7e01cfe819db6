"""Commands in children of a process that has imported everything already: real processes, which cost little."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
# What an optimiser imports at its first use, `torch._dynamo`, takes as long as all the rest.
CONTEXT.set_forkserver_preload(["rlrun.cli.main", "rlrun.experiment", "rlrun.algorithms.sac", "torch._dynamo"])
PATHS = [str(Path(__file__).parents[1]), *sys.path]  # before a test adds to it; with where this module is found


def serve(module: str, words: list[str], places: list[str]) -> None:
    """Be `python -m` with these words, and print into two files."""
    # Else lanes in processes would be asked of a server of this process, and each would import everything again.
    multiprocessing.set_start_method("fork", force=True)
    for number, place in enumerate(places, start=1):
        os.dup2(os.open(place, os.O_WRONLY | os.O_APPEND), number)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored below a shell that runs tests in its background
    sys.path.insert(0, os.getcwd())
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


class Child:
    """What `subprocess.Popen` is, as far as it is asked: a process that gets signals, and is waited for."""

    def __init__(self, target: Callable[..., None], *given: Any, paths: Sequence[str]) -> None:
        self._process = CONTEXT.Process(target=target, args=given)
        before, sys.path[:] = [*sys.path], paths
        try:
            self._process.start()
        finally:
            sys.path[:] = before
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code


class Forked(Child):
    """What `python -m` starts.

    words: of the command, in this process's folder; module: that is run.
    """

    def __init__(self, words: list[str], *, module: str = "rlrun") -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._out, self._err = (Path(self._folder.name) / name for name in ("out", "err"))
        for path in (self._out, self._err):
            path.touch()
        super().__init__(serve, module, words, [str(self._out), str(self._err)], paths=PATHS)

    def printed(self) -> str:
        """Return what was printed so far."""
        return self._out.read_text()

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end; return what was printed, and what was told."""
        self.wait(timeout)
        return self.printed(), self._err.read_text()

    def until(self, ready: Callable[[], object]) -> None:
        """Wait until something is so, or the process ended."""
        while self.poll() is None and not ready():
            time.sleep(0.01)


def unroll(connection: Connection) -> None:
    """Be the other end of a `ProcessLink`."""
    from rlrun.collect.workers.process import serve

    os.setpgid(0, 0)
    serve(connection.fileno(), os.getppid())


def worker(connection: Connection) -> Child:
    """Start what `rlrun.collect.workers.links` starts in an interpreter of its own; it finds the same modules."""
    return Child(unroll, connection, paths=[*sys.path, PATHS[0]])

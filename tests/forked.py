"""Commands in children of a process that has imported everything already: real processes, which cost little."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.warm import PATHS, Child, serve


class Forked(Child):
    """What `python -m` starts.

    overrides: of the command, in this process's folder; module: that is run.
    """

    def __init__(self, overrides: list[str], *, module: str = "rlrun") -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._out, self._err = (Path(self._folder.name) / name for name in ("out", "err"))
        for path in (self._out, self._err):
            path.touch()
        super().__init__(serve, module, overrides, [str(self._out), str(self._err)], paths=PATHS)

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
    from rlrun.collect.links import serve

    os.setpgid(0, 0)
    serve(connection.fileno(), os.getppid())


def worker(connection: Connection) -> Child:
    """Start what `rlrun.collect.links` starts in an interpreter of its own; it finds the same modules."""
    return Child(unroll, connection, paths=[*sys.path, PATHS[0]])

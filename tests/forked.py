"""Commands in children of a process that has imported everything already: real processes, which cost little."""

import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from rlrun.sweep.children import CONTEXT, Child

CONTEXT.set_forkserver_preload(["rlrun.cli.main", "rlrun.sweep.preload"])
PATHS = [str(Path(__file__).parents[1]), *sys.path]  # of what is imported here, before anybody adds to it


def serve(module: str, overrides: list[str], places: list[str], folder: str | None = None) -> None:
    """Be `python -m` with these words, in a folder and a group of its own, and print into two files."""
    # Else envs in processes would be asked of a server of this process, and each would import everything again.
    multiprocessing.set_start_method("fork", force=True)
    if folder is not None:
        os.setsid()
        os.chdir(folder)
    for number, place in enumerate(places, start=1):
        os.dup2(os.open(place, os.O_WRONLY | os.O_APPEND | os.O_CREAT), number)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored below a shell that runs this in its background
    sys.path.insert(0, os.getcwd())
    sys.argv = [module, *overrides]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def start(overrides: list[str], *, folder: Path, log: Path, module: str = "rlrun") -> Child:
    """Start `python -m rlrun WORDS` in a folder, in a group of its own; what it prints is added to a file."""
    return Child(serve, module, overrides, [str(log), str(log)], str(folder), paths=PATHS)


class Started(Child):
    """A child that is read as a `subprocess.Popen`."""

    @property
    def returncode(self) -> int | None:
        return self.poll()


class Forked(Started):
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
        """Wait for the end; return stdout and stderr."""
        self.wait(timeout)
        return self.printed(), self._err.read_text()

    def until(self, ready: Callable[[], object]) -> None:
        """Wait until something is so, or the process ended."""
        while self.poll() is None and not ready():
            time.sleep(0.01)


def unroll(connection: Connection) -> None:
    """Be the process of a `rlrun.core.worker.Worker`."""
    from rlrun.core.worker import serve

    os.setpgid(0, 0)
    serve(connection.fileno(), os.getppid())


def worker(connection: Connection) -> Started:
    """Start what `rlrun.core.worker` starts in an interpreter of its own; it finds the same modules."""
    return Started(unroll, connection, paths=[*sys.path, PATHS[0]])

"""`rlrun` in children of a process that has imported everything already: real processes, which cost little."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONTEXT = multiprocessing.get_context("forkserver")
# What an optimiser imports at the first use, `torch._dynamo`, takes as long as all the rest.
CONTEXT.set_forkserver_preload(["rlrun.cli.main", "rlrun.experiment", "rlrun.algorithms.sac", "torch._dynamo"])


def serve(words: list[str], places: list[str]) -> None:
    """Be `rlrun` with these words, and print into two files."""
    # Else lanes in processes would be asked of a server of this process, and each would import everything again.
    multiprocessing.set_start_method("fork", force=True)
    for number, place in enumerate(places, start=1):
        os.dup2(os.open(place, os.O_WRONLY | os.O_APPEND), number)
    sys.path.insert(0, os.getcwd())  # as `python -m` does
    sys.argv = ["rlrun", *words]
    from rlrun.cli.main import main

    main()


class Forked:
    """What `subprocess.Popen` of `python -m rlrun` is, as far as tests look: it can be killed, and is waited for.

    words: of the command, in this process's folder.
    """

    def __init__(self, words: list[str]) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._printed = [Path(self._folder.name) / name for name in ("out", "err")]
        for path in self._printed:
            path.touch()
        self._process = CONTEXT.Process(target=serve, args=(words, [str(path) for path in self._printed]))
        before, sys.path[:] = [*sys.path], [*sys.path, str(ROOT)]  # where the child finds this module
        try:
            self._process.start()
        finally:
            sys.path[:] = before
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self._process.terminate()

    def wait(self, timeout: float | None = None) -> int | None:
        self._process.join(timeout)
        return self._process.exitcode

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Wait for the end; return what was printed, and what was told."""
        assert self.wait(timeout) is not None, f"still there after {timeout} s"
        out, err = (path.read_text() for path in self._printed)
        return out, err

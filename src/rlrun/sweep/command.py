"""The command of a job, here or on another machine: `rlrun train --run-dir jobs/KEY --continue OVERRIDE…`."""

from __future__ import annotations

import os
import runpy
import signal
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rlrun.config import composition
from rlrun.config.expansion import Job, composed_of
from rlrun.core.processes import handled
from rlrun.sweep import children
from rlrun.sweep.children import STOPPED

PAUSE = 0.1  # seconds between two checks of the process
VISIBLE = "CUDA_VISIBLE_DEVICES"  # the variable with the GPUs that a process may use


def call(arguments: tuple[str, ...], job: Job, ranks: int = 1) -> int:
    """Run `rlrun ARGUMENTS` in this process, or torchrun if there are several ranks; return the exit code."""
    if ranks > 1:
        program = ("--no-python", sys.executable, "-P", "-m", "rlrun")  # -P: not from the current folder
        return _call_torchrun(["--standalone", f"--nproc-per-node={ranks}", *program, *arguments])
    if job.composed:
        composition.given[job.overrides] = composed_of(job.composed)
    sys.argv[:] = ["rlrun", *arguments]
    try:
        runpy.run_module("rlrun", run_name="__main__")
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1
    return 0


def _call_torchrun(arguments: list[str]) -> int:
    """Run torchrun in this process; return the exit code of the rank that failed first, instead of torchrun's 1."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    os.environ["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)  # for imports of the ranks
    try:
        run.main(arguments)
    except ChildFailedError as error:
        return error.get_first_failure()[1].exitcode
    except SignalException:  # torchrun has passed the signal on, and the ranks have ended
        return STOPPED
    return 0


@dataclass
class JobCommand:
    """The command of a job; a call runs it in a new process and returns the exit code.

    A signal, or the end of the calling process, makes the job save and stop.

    Attributes:
        job: the job.
        run: its run directory.
        log: the file for its output.
        config_dir: the user's own conf folder.
        ranks: number of processes of the job.
        folder: working directory.
        paths: entries for sys.path.
    """

    job: Job
    run: Path
    log: Path
    config_dir: Path | None = None
    ranks: int = 1
    folder: Path = field(default_factory=Path.cwd)
    paths: tuple[str, ...] = field(default_factory=lambda: tuple(filter(None, sys.path)))
    _child: children.Child | None = field(default=None, init=False)
    _asked: bool = field(default=False, init=False)
    _leaving: bool = field(default=False, init=False)

    @property
    def arguments(self) -> tuple[str, ...]:
        """Arguments of `rlrun`."""
        conf = () if self.config_dir is None else ("--config-dir", str(self.config_dir))
        # The command that runs a sweep has already checked that all its jobs are trusted.
        options = ("--run-dir", str(self.run), "--continue", "--digest", self.job.key, "--trust", *conf)
        return ("train", *options, "--", *self.job.overrides)

    def start(self, variables: dict[str, str] | None = None) -> children.Child:
        """Start its process.

        variables: for its environment, in addition to those of this process.
        """
        return children.start(call, self.arguments, self.job, self.ranks, log=self.log, variables=variables)

    def __call__(self) -> int:
        os.chdir(self.folder)
        sys.path += [path for path in self.paths if path not in sys.path]
        # A scheduler that starts several jobs from one process assigns GPUs to each.
        child = self._child = self.start({VISIBLE: os.environ[VISIBLE]} if VISIBLE in os.environ else None)
        interrupts = handled(signal.default_int_handler, signal.SIGINT)  # a script's `&` sets it to be ignored
        with handled(lambda number, frame: self._ask(), signal.SIGTERM), interrupts:
            while True:
                try:
                    while (code := child.poll()) is None:
                        time.sleep(PAUSE)
                    return code
                except KeyboardInterrupt:  # Ray cancels a task by it, anywhere in this loop
                    self._ask()

    def _ask(self) -> None:
        """Ask the job to save and stop; kill it on a second request, unless `checkpoint` is saving it."""
        if self._child is not None and not self._leaving:
            self._child.kill() if self._asked else self._child.terminate()
            self._asked = True

    def checkpoint(self) -> Any:
        """Save the job when submitit loses the machine; return the submission that continues it, or None."""
        code = STOPPED
        if self._child is not None:
            if not self._asked:  # a second signal would interrupt its checkpoint
                self._child.terminate()
            self._leaving = True
            code = self._child.wait()
        if code not in (STOPPED, -signal.SIGTERM):
            return None  # it has ended by itself meanwhile
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(replace(self))

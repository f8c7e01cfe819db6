"""The command of a job: `rlrun train --run-dir jobs/KEY --continue OVERRIDE…`, here or on another machine."""

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

PAUSE = 0.1  # seconds between two looks at the process
VISIBLE = "CUDA_VISIBLE_DEVICES"  # names the accelerators that a process may use


def call(arguments: tuple[str, ...], job: Job, ranks: int = 1) -> int:
    """Be `rlrun ARGUMENTS`, or the torchrun that starts several of it; return the exit code."""
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
    """Be torchrun; return the exit code of the process that failed first, which torchrun itself would turn into 1."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    os.environ["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)  # they find what this one does
    try:
        run.main(arguments)
    except ChildFailedError as error:
        return error.get_first_failure()[1].exitcode
    except SignalException:  # it has passed it on, and the processes have ended
        return STOPPED
    return 0


@dataclass
class JobCommand:
    """The command of a job. Called, it runs in a process of its own and returns that one's exit code.

    A signal, or the end of the process that calls it, lets the job save and stop.

    Attributes:
        job: which one.
        run: its run directory.
        log: the file for what it prints.
        config_dir: the user's own conf folder.
        ranks: processes that make it together.
        folder: in which it runs.
        paths: from which it imports.
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
        """Those of `rlrun`."""
        conf = () if self.config_dir is None else ("--config-dir", str(self.config_dir))
        # Who runs a sweep is asked for trust of all its jobs at the door.
        options = ("--run-dir", str(self.run), "--continue", "--digest", self.job.key, "--trust", *conf)
        return ("train", *options, "--", *self.job.overrides)

    def start(self, variables: dict[str, str] | None = None) -> children.Child:
        """Start its process.

        variables: of its environment, in addition to those of this process.
        """
        return children.start(call, self.arguments, self.job, self.ranks, log=self.log, variables=variables)

    def __call__(self) -> int:
        os.chdir(self.folder)
        sys.path += [path for path in self.paths if path not in sys.path]
        # A scheduler that starts several jobs in one process gives each its own accelerators.
        child = self._child = self.start({VISIBLE: os.environ[VISIBLE]} if VISIBLE in os.environ else None)
        interrupts = handled(signal.default_int_handler, signal.SIGINT)  # ignored by what `&` of a script has started
        with handled(lambda number, frame: self._ask(), signal.SIGTERM), interrupts:
            while True:
                try:
                    while (code := child.poll()) is None:
                        time.sleep(PAUSE)
                    return code
                except KeyboardInterrupt:  # by which Ray cancels, anywhere in this loop
                    self._ask()

    def _ask(self) -> None:
        """Let the job save and stop; kill it where it was asked before, unless its machine is taken away."""
        if self._child is not None and not self._leaving:
            self._child.kill() if self._asked else self._child.terminate()
            self._asked = True

    def checkpoint(self) -> Any:
        """Save the job, as submitit asks when the machine is taken away; return what is to be started again."""
        code = STOPPED
        if self._child is not None:
            if not self._asked:  # a second signal would interrupt its checkpoint
                self._child.terminate()
            self._leaving = True
            code = self._child.wait()
        if code not in (STOPPED, -signal.SIGTERM):
            return None  # it ended by itself meanwhile
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(replace(self))

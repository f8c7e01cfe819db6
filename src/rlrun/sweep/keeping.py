"""The keeper of a job on another machine: what the scheduler starts there, and what starts the job's process.

It waits for the end of that process, hands on what the coordinator says by notes, and saves the job when the scheduler
takes the machine away. It outlives the coordinator; the job's process does not outlive it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from rlrun.sweep import children
from rlrun.sweep.notes import ENDED, Notes
from rlrun.sweep.task import STOPPED, VISIBLE, Task, work

PAUSE = 0.1  # seconds between two looks at the process
HEAR = 1.0  # seconds between two looks for notes


@dataclass(frozen=True)
class Errand:
    """What a keeper is sent with.

    Attributes:
        task: the job.
        log: for what its process prints.
        notes: of the coordinator that sent it.
        ticket: under which they stand there.
        place: the folder in which the coordinator was started; relative paths count from it.
        paths: where the coordinator imports from.
        command: of the coordinator; a run notes by which it was made.
    """

    task: Task
    log: Path
    notes: Notes
    ticket: str
    place: Path
    paths: tuple[str, ...]
    command: tuple[str, ...]


class Keeper:
    """Called on the other machine; returns the exit code of the job's process."""

    def __init__(self, errand: Errand) -> None:
        self.errand = errand
        self._child: children.Child | None = None
        self._leaving = False

    def __call__(self) -> int:
        errand = self.errand
        os.chdir(errand.place)
        sys.path += [path for path in errand.paths if path not in sys.path]
        sys.argv[:] = errand.command
        if any(errand.notes.said(errand.ticket, word) for word in ("leave", "kill")):
            return self._end(STOPPED)
        before = _on_terminate(self._leave)
        try:
            # A scheduler that starts several jobs in one process gives each its own accelerators.
            variables = {name: os.environ[name] for name in (VISIBLE,) if name in os.environ}
            self._child = children.start(work, errand.task, log=errand.log, variables=variables)
            errand.notes.say(errand.ticket, "begun")  # it has imported everything by now
            return self._end(self._watch(self._child))
        finally:
            self._ask()  # where it is there still: something else than its end has led here
            _on_terminate(before)

    def _watch(self, child: children.Child) -> int:
        """Return the exit code of a process when it ended; hand on what the coordinator says."""
        heard, handled = 0.0, set()
        while (code := child.poll()) is None:
            if time.monotonic() - heard > HEAR:
                heard = time.monotonic()
                for word, pass_on in (("leave", self._ask), ("kill", child.kill)):
                    if word not in handled and self.errand.notes.said(self.errand.ticket, word):
                        handled.add(word)
                        pass_on()
            time.sleep(PAUSE)
        return code

    def _end(self, code: int) -> int:
        self.errand.notes.take_back(self.errand.ticket, "begun")
        self.errand.notes.say(self.errand.ticket, f"{ENDED}{code}")
        return code

    def _leave(self, number: int, frame: FrameType | None) -> None:
        self._ask()

    def _ask(self) -> None:
        """Have the job leave in order; once, for a second signal would cut off what it saves."""
        if self._child is not None and not self._leaving:
            self._leaving = True
            self._child.terminate()

    def checkpoint(self) -> Any:
        """Save the job, as submitit asks when the machine is taken away; return what is to be started again.

        None: the job ended by itself meanwhile.
        """
        if self._child is not None:
            self._ask()
            code = self._child.wait()
            if code not in (STOPPED, -signal.SIGTERM):
                self._end(code)
                return None
        errand = self.errand
        errand.notes.say(errand.ticket, "again")
        errand.notes.take_back(errand.ticket, "begun")
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(Keeper(errand))


def _on_terminate(handler: Any) -> Any:
    """Set what SIGTERM does; return what it did. Python allows it in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        return handler
    return signal.signal(signal.SIGTERM, handler)

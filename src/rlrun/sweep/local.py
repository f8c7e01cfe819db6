"""Jobs as processes of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from rlrun.sweep import children
from rlrun.sweep.book import Entry
from rlrun.sweep.launching import Tasks, Worded, room
from rlrun.sweep.task import VISIBLE, work
from rlrun.sweep.working import Process


class Local:
    """Start each job in a process of its own, which begins at once; accelerators are shared out in turn."""

    def __init__(self, tasks: Tasks) -> None:
        self.tasks = tasks
        self._starter = children.Starter()

    def start(self, entry: Entry, slot: int) -> Process:
        task, log = self.tasks.task(entry), self.tasks.log(entry)
        return self._starter.start(work, task, log=log, variables=share(slot))

    def workers(self, entries: Iterable[Worded]) -> int:
        return room(entries)

    def close(self) -> None:
        self._starter.close()


def share(place: int) -> dict[str, str]:
    """Return the variables by which a process has one of the accelerators, which are handed out in turn."""
    gpus = accelerators()
    return {VISIBLE: gpus[place % len(gpus)]} if gpus else {}


def accelerators() -> list[str]:
    """Return the GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` names them."""
    named = os.environ.get(VISIBLE)
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    names = [path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*")]
    return sorted((name for name in names if name.isdigit()), key=int)

"""Run jobs as processes on this machine."""

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from rlrun.config.expansion import Job
from rlrun.config.overrides import parse
from rlrun.core.machine import cores
from rlrun.sweep.children import Child
from rlrun.sweep.command import VISIBLE, JobCommand


class Local:
    """Start each job at once in its own process; GPUs are assigned in rotation.

    Args:
        folder: of the sweep.
        ranks: processes per job, started by torchrun.
    """

    def __init__(self, folder: Path, *, ranks: int = 1) -> None:
        self.ranks = ranks

    def start(self, command: JobCommand, slot: int) -> Child:
        """Start a job in one of `workers` slots."""
        gpus = accelerators()
        return command.start({VISIBLE: gpus[slot % len(gpus)]} if gpus else None)

    def batch(self) -> AbstractContextManager[None]:
        """Start the jobs of a `with` block together."""
        return nullcontext()

    def workers(self, jobs: Iterable[Job]) -> int:
        """Return how many of these jobs can run at a time."""
        return room(jobs, self.ranks)

    def close(self) -> None:
        """Do nothing: there are no resources to release."""


def threads(jobs: Iterable[Job]) -> int:
    """Return the largest number of threads in the overrides of jobs; 1 by default."""
    values = [override.value for job in jobs for override in parse(job.overrides) if override.key == "threads"]
    return max((value for value in values if isinstance(value, int)), default=1)


def room(jobs: Iterable[Job], ranks: int = 1) -> int:
    """Return how many of these jobs this machine has cores for."""
    return max(1, cores() // (threads(jobs) * ranks))


def accelerators() -> list[str]:
    """Return the GPUs that this process may use, in the form of `CUDA_VISIBLE_DEVICES`."""
    named = os.environ.get(VISIBLE)
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    names = [path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*")]
    return sorted((name for name in names if name.isdigit()), key=int)

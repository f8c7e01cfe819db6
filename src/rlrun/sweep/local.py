"""The tasks of jobs, how many a machine can run, and jobs as processes of this machine."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rlrun.config.expansion import Job
from rlrun.config.overrides import parse
from rlrun.runs.manifest import cores
from rlrun.sweep import children
from rlrun.sweep.job_store import Entry, Task, place_of

VISIBLE = "CUDA_VISIBLE_DEVICES"  # names the accelerators that a process may use


def work(task: Task) -> int:
    """Run a job; return the exit code of its process, the only one that imports torch."""
    from rlrun.sweep.work import carry_out

    return carry_out(task)


@dataclass(frozen=True)
class Tasks:
    """Turns the entries of a job store into tasks.

    Attributes:
        folder: of the sweep.
        config_dir: the user's own conf folder.
        typed: jobs that are composed already, by their keys.
    """

    folder: Path
    config_dir: Path | None = None
    typed: Mapping[str, Job] = field(default_factory=dict)

    def task(self, entry: Entry) -> Task:
        """Return what the process of a job needs to know."""
        run, composed = self.folder / place_of(entry), self._composed(entry)
        return Task(self.folder, entry.key, run, entry.overrides, self.config_dir, composed, entry.owner)

    def _composed(self, entry: Entry) -> bytes | None:
        """Return the composed config of a job whose overrides are those of now."""
        job = self.typed.get(entry.key)
        return job.composed if job is not None and job.overrides == entry.overrides else None


class Local:
    """Start each job in its own process at once; accelerators are handed out in rotation."""

    def __init__(self, tasks: Tasks) -> None:
        self.tasks = tasks

    def start(self, entry: Entry, slot: int) -> children.Child:
        """Start a job in one of `workers` slots."""
        task, gpus = self.tasks.task(entry), accelerators()
        return children.start(work, task, log=task.log, variables={VISIBLE: gpus[slot % len(gpus)]} if gpus else {})

    def workers(self, jobs: Iterable[Entry | Job]) -> int:
        """Return how many of these jobs can run at a time."""
        return room(jobs)

    def close(self) -> None:
        """Release what was opened for the jobs: nothing."""


def threads(jobs: Iterable[Entry | Job]) -> int:
    """Return the largest number of threads that the overrides of a job ask for, those of all its learners."""

    def number(job: Entry | Job, key: str) -> int:
        values = [override.value for override in parse(job.overrides) if override.key == key]
        return max((value for value in values if isinstance(value, int)), default=1)

    return max((number(job, "threads") * number(job, "learners") for job in jobs), default=1)


def room(jobs: Iterable[Entry | Job]) -> int:
    """Return how many of these jobs the cores of this machine can run at a time."""
    return max(1, cores() // threads(jobs))


def accelerators() -> list[str]:
    """Return the GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` names them."""
    named = os.environ.get(VISIBLE)
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    names = [path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*")]
    return sorted((name for name in names if name.isdigit()), key=int)

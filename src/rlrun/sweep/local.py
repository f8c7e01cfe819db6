"""The tasks of jobs, how many a machine can run, and jobs as processes of this machine."""

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from rlrun import config as configuration
from rlrun.config.expansion import Job, job_of
from rlrun.config.overrides import parse
from rlrun.core.errors import ConfigError, RunDirError
from rlrun.runs.files import require_own_file
from rlrun.runs.manifest import cores
from rlrun.sweep import children
from rlrun.sweep.job_store import Entry, Task, place_of

BUDGET = re.compile(r"stop\.[a-z_]+=[0-9][0-9_.e+-]{0,31}", re.ASCII)
VISIBLE = "CUDA_VISIBLE_DEVICES"  # names the accelerators that a process may use
FOLDERS = ("jobs", "logs", "launches")  # of a sweep


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
        typed: jobs whose overrides the user typed, by their keys; what the others import is limited, as of any run.
        trust: packages beyond those of any run.
    """

    folder: Path
    config_dir: Path | None = None
    typed: Mapping[str, Job] = field(default_factory=dict)
    trust: tuple[str, ...] = ()

    def task(self, entry: Entry) -> Task:
        """Return what the process of a job needs to know."""
        run, composed = self.folder / place_of(entry), self._composed(entry)
        return Task(self.folder, entry.key, run, entry.overrides, self.config_dir, composed, entry.owner, self.trust)

    def _composed(self, entry: Entry) -> bytes | None:
        """Return the composed config of a job whose overrides the user typed, except for a raised budget."""
        job = self.typed.get(entry.key)
        if job is None or job.overrides == entry.overrides:
            return None if job is None else job.composed
        if all(map(BUDGET.fullmatch, {*entry.overrides} - {*job.overrides})):
            with suppress(ConfigError):
                recomposed = job_of(configuration.compose(entry.overrides, self.config_dir), entry.label)
                return recomposed.composed if recomposed.key == entry.key else None
        return None


def require_own(folder: Path, *files: str) -> None:
    """Refuse a sweep's folder in which one of these files leads out of it, or what jobs write to.

    Raises:
        RunDirError: naming the symbolic link.
    """
    named = [folder / name for name in (*files, *FOLDERS)]
    inside = (entry for name in FOLDERS[:2] if (folder / name).is_dir() for entry in (folder / name).iterdir())
    for path in chain(named, inside):  # folders before what is in them
        if path.is_symlink():
            raise RunDirError(f"{path} is a symbolic link, which a sweep does not follow")
        if not path.is_dir():
            require_own_file(path)


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

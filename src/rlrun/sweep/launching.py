"""What every launcher starts from: the tasks of a sweep's jobs, and how many of them a machine bears."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rlrun import config as configuration
from rlrun.config.words import parse
from rlrun.errors import ConfigError
from rlrun.manifest import cores
from rlrun.sweep.book import Entry
from rlrun.sweep.expansion import Job, job_of
from rlrun.sweep.task import Task

BUDGET = re.compile(r"stop\.[a-z_]+=[0-9][0-9_.e+-]{0,31}", re.ASCII)


@dataclass(frozen=True)
class Tasks:
    """Turns the entries of a book into tasks.

    Attributes:
        folder: of the sweep.
        config_dir: the user's own conf folder.
        typed: jobs whose words the user typed, by their keys; what the others import is limited, as of any run.
        trust: packages beyond those of any run.
    """

    folder: Path
    config_dir: Path | None = None
    typed: Mapping[str, Job] = field(default_factory=dict)
    trust: tuple[str, ...] = ()

    def task(self, entry: Entry) -> Task:
        """Return what the process of a job needs to know."""
        return Task(
            self.folder / "jobs" / entry.key,
            entry.words,
            config_dir=self.config_dir,
            composed=self._composed(entry),
            owner=entry.owner,
            trust=self.trust,
        )

    def _composed(self, entry: Entry) -> bytes | None:
        """Return what the words of a job come to if the user typed them, or all but a budget that was raised since."""
        job = self.typed.get(entry.key)
        if job is None or job.words == entry.words:
            return None if job is None else job.composed
        if all(map(BUDGET.fullmatch, {*entry.words} - {*job.words})):
            with suppress(ConfigError):
                recomposed = job_of(configuration.compose(entry.words, self.config_dir), entry.label)
                return recomposed.composed if recomposed.key == entry.key else None
        return None

    def log(self, entry: Entry) -> Path:
        """Return the file for what the process of a job prints."""
        return self.folder / "logs" / f"{entry.key}.txt"


class Worded(Protocol):
    """A job, as far as its words tell."""

    @property
    def words(self) -> tuple[str, ...]: ...


def threads(jobs: Iterable[Worded]) -> int:
    """Return the largest number of threads that the words of a job ask for, those of all its learners."""
    return max((_number(job, "threads") * _number(job, "learners") for job in jobs), default=1)


def _number(job: Worded, key: str) -> int:
    values = [word.value for word in parse(job.words) if word.key == key]
    return max((value for value in values if isinstance(value, int)), default=1)


def room(jobs: Iterable[Worded]) -> int:
    """Return how many of these jobs the cores of this machine bear at a time."""
    return max(1, cores() // threads(jobs))

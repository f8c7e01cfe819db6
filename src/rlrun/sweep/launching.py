"""What every launcher starts from: the tasks of a sweep's jobs, and how many of them a machine bears."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rlrun.config.words import parse
from rlrun.manifest import cores
from rlrun.sweep.book import Entry
from rlrun.sweep.task import Task


@dataclass(frozen=True)
class Tasks:
    """Turns the entries of a book into tasks.

    Attributes:
        folder: of the sweep.
        config_dir: the user's own conf folder.
        typed: jobs whose words the user typed, and what they were composed to; what the others import is limited, as
            of any run.
        trust: packages beyond those of any run.
    """

    folder: Path
    config_dir: Path | None = None
    typed: Mapping[str, bytes] = field(default_factory=dict)
    trust: tuple[str, ...] = ()

    def task(self, entry: Entry) -> Task:
        """Return what the process of a job needs to know."""
        return Task(
            self.folder / "jobs" / entry.key,
            entry.words,
            config_dir=self.config_dir,
            composed=self.typed.get(entry.key),
            owner=entry.owner,
            trust=self.trust,
        )

    def log(self, entry: Entry) -> Path:
        """Return the file for what the process of a job prints."""
        return self.folder / "logs" / f"{entry.key}.txt"


class Worded(Protocol):
    """A job, as far as its words tell."""

    @property
    def words(self) -> tuple[str, ...]: ...


def threads(jobs: Iterable[Worded]) -> int:
    """Return the largest number of threads that the words of a job ask for."""
    values = [word.value for job in jobs for word in parse(job.words) if word.key == "threads"]
    return max([1, *(value for value in values if isinstance(value, int))])


def room(jobs: Iterable[Worded]) -> int:
    """Return how many of these jobs the cores of this machine bear at a time."""
    return max(1, cores() // threads(jobs))

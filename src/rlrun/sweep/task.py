"""A job, as its process is told of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Task:
    """What the process of a job needs to know.

    Attributes:
        run: its run directory.
        words: of its command line.
        sweep: the sweep's folder, if the words came with it and were not typed by the user.
        trust: packages that the user trusts beyond those of any run.
    """

    run: Path
    words: tuple[str, ...]
    config_dir: Path | None = None
    sweep: Path | None = None
    trust: tuple[str, ...] = ()


def work(task: Task) -> int:
    """Do a job; return the exit code of its process. Only there torch is imported."""
    from rlrun.sweep.work import carry_out

    return carry_out(task)

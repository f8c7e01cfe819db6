"""A job, as its process is told of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

STOPPED = 75  # exit code: on request, to be gone on with
VISIBLE = "CUDA_VISIBLE_DEVICES"  # names the accelerators that a process may use


@dataclass(frozen=True)
class Task:
    """What the process of a job needs to know.

    Attributes:
        run: its run directory.
        words: of its command line.
        composed: what the user's words were composed to; None where the words came with the sweep's folder, and
            what they import is limited.
        owner: the coordinator that claimed the job; None where there is none.
        trust: packages that the user trusts beyond those of any run.
    """

    run: Path
    words: tuple[str, ...]
    config_dir: Path | None = None
    composed: bytes | None = None
    owner: str | None = None
    trust: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """The sweep's."""
        return self.run.parent.parent


def work(task: Task) -> int:
    """Do a job; return the exit code of its process. Only there torch is imported."""
    from rlrun.sweep.work import carry_out

    return carry_out(task)

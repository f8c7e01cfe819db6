"""How the jobs of a sweep are started: as processes of this machine, by Slurm or by Ray."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Protocol

from rlrun.config.expansion import Job
from rlrun.sweep.command import JobCommand
from rlrun.sweep.launchers.local import Local
from rlrun.sweep.launchers.ray import Ray
from rlrun.sweep.launchers.slurm import Slurm

__all__ = ["Launcher", "Local", "Process", "Ray", "Slurm"]


class Process(Protocol):
    """A job that was started, or waits in a queue."""

    def poll(self) -> int | None:
        """Return the exit code; None before its end."""

    def terminate(self) -> None:
        """Let it save and stop."""

    def kill(self) -> None:
        """End it, as it hangs."""


class Launcher(Protocol):
    """Starts jobs, each of as many processes of torchrun as `ranks` says."""

    ranks: int

    def start(self, command: JobCommand, slot: int) -> Process:
        """Start a job in one of `workers` slots, at the end of the batch at the latest."""

    def batch(self) -> AbstractContextManager[None]:
        """Start the jobs of a `with` block together."""

    def workers(self, jobs: Iterable[Job]) -> int:
        """Return how many of these jobs can run at a time."""

    def close(self) -> None:
        """Release what was opened for the jobs."""

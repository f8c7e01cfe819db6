"""Launchers start the jobs of a sweep: as processes on this machine, by Slurm or by Ray."""

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
    """A job that was started or is queued."""

    def poll(self) -> int | None:
        """Return the exit code, or None until the end."""

    def terminate(self) -> None:
        """Ask it to save and stop."""

    def kill(self) -> None:
        """Kill it, because it hangs."""


class Launcher(Protocol):
    """Starts jobs, each with `ranks` processes by torchrun."""

    ranks: int

    def start(self, command: JobCommand, slot: int) -> Process:
        """Start a job in one of `workers` slots, no later than the end of the batch."""

    def batch(self) -> AbstractContextManager[None]:
        """Start the jobs of a `with` block together."""

    def workers(self, jobs: Iterable[Job]) -> int:
        """Return how many of these jobs can run at a time."""

    def close(self) -> None:
        """Release resources, such as a connection to a cluster."""

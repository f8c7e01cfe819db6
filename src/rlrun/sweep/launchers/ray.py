"""Run jobs by Ray, on this machine or on a cluster."""

import importlib
import importlib.util
import os
import signal
import socket
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, chdir, nullcontext, suppress
from pathlib import Path
from typing import Any

from rlrun.config.expansion import Job
from rlrun.core.errors import MissingExtra, RequestError
from rlrun.core.files import reason
from rlrun.core.processes import handled
from rlrun.sweep.children import safe_path
from rlrun.sweep.command import JobCommand
from rlrun.sweep.launchers.local import threads

FAILED = 1  # exit code of a task that Ray lost


class RayTask:
    """A job handed to Ray, with the methods of a process."""

    def __init__(self, ray: Any, task: Any) -> None:
        self._ray = ray
        self._task = task

    def poll(self) -> int | None:
        if not self._ray.wait([self._task], timeout=0)[0]:
            return None
        try:
            return int(self._ray.get(self._task))
        except Exception:  # the task was cancelled, or its machine died
            return FAILED

    def terminate(self) -> None:
        self._cancel(force=False)

    def kill(self) -> None:
        self._cancel(force=True)

    def _cancel(self, *, force: bool) -> None:
        with suppress(Exception):  # the task or the cluster has just ended
            self._ray.cancel(self._task, force=force)


class Ray:
    """Run each job as a Ray task with its own resources; Ray starts tasks as resources become free.

    Args:
        folder: of the sweep.
        address: of a cluster, `auto` or `host:port`; None = a new one on this machine, which ends with this process.
        ranks: processes per job, started by torchrun.
        cpus: cores per job; None = the override `threads` times the ranks.
        gpus: per job; may be a fraction.
        memory: GB per job; None = not reserved.
        resources: further resources per job, by name.

    Raises:
        RequestError: there is no such cluster.
    """

    def __init__(
        self,
        folder: Path,
        *,
        address: str | None = None,
        ranks: int = 1,
        cpus: float | None = None,
        gpus: float = 0.0,
        memory: float | None = None,
        resources: Mapping[str, float] | None = None,
    ) -> None:
        self.cpus, self.ranks = cpus, ranks
        self._wanted: dict[str, Any] = {"num_gpus": gpus, "resources": dict(resources or {})}
        if memory is not None:
            self._wanted["memory"] = round(memory * 2**30)
        try:
            self._ray, self._started = connect(address)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise RequestError(f"launcher=ray: {str(error).strip().splitlines()[0]}") from error
        self._remote = self._ray.remote(max_retries=0)(JobCommand.__call__)

    @staticmethod
    def require(*, address: str | None = None, **rest: Any) -> None:
        """Refuse to begin if Ray is not installed, or the named cluster does not answer.

        Raises:
            MissingExtra: Ray is not installed.
            RequestError: no cluster answers at the address; Ray itself would report this only after minutes.
        """
        if importlib.util.find_spec("ray") is None:
            raise MissingExtra("launcher=ray", "ray", "ray")
        host, _, port = (address or "").rpartition(":")
        if host and port.isdecimal() and "/" not in host:
            try:
                socket.create_connection((host, int(port)), timeout=10.0).close()
            except OSError as error:
                raise RequestError(f"launcher.address={address}: nobody answers there: {reason(error)}") from error

    def start(self, command: JobCommand, slot: int) -> RayTask:
        """Hand a job to Ray."""
        task = self._remote.options(num_cpus=self._cpus([command.job]), **self._wanted).remote(command)
        return RayTask(self._ray, task)

    def batch(self) -> AbstractContextManager[None]:
        """Start the jobs of a `with` block together."""
        return nullcontext()

    def workers(self, jobs: Iterable[Job]) -> int:
        """Return how many of these jobs the cluster can run at a time."""
        jobs = list(jobs)
        return max(1, int(self._ray.cluster_resources().get("CPU", 1.0) // self._cpus(jobs)))

    def close(self) -> None:
        """Shut down Ray, if it was started for these jobs."""
        if self._started:
            self._ray.shutdown()

    def _cpus(self, jobs: Iterable[Job]) -> float:
        return self.cpus or threads(jobs) * self.ranks


def connect(address: str | None = None) -> tuple[Any, bool]:
    """Connect to Ray; return it, and whether this call made the connection, so that the caller has to close it.

    address: of a cluster, `host:port` or `auto`; None = a new one on this machine, which ends with this process.
    """
    ray = importlib.import_module("ray")
    if ray.is_initialized():
        return ray, False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Without an address Ray uses RAY_ADDRESS. Its ports are open to everybody who can reach the machine, unless it
    # listens locally only.
    where = {"address": address} if address is not None else {"address": "local", "_node_ip_address": "127.0.0.1"}
    kept = [handled(signal.getsignal(number), number) for number in (signal.SIGINT, signal.SIGTERM)]
    # Ray sets its own handler for SIGTERM, and puts the current folder first on sys.path in its processes.
    with kept[0], kept[1], safe_path(), chdir(os.sep):
        ray.init(**where, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    return ray, True

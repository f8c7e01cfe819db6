"""Jobs that Ray starts, on this machine or on those of its cluster."""

import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from rlrun.config.expansion import Job
from rlrun.core.errors import RequestError
from rlrun.runs import cluster
from rlrun.runs.files import reason
from rlrun.sweep.job_store import Entry
from rlrun.sweep.local import Tasks, threads
from rlrun.sweep.remote import Remote, RemoteRunner


class Ray(Remote):
    """Hand jobs to Ray, each a task with resources of its own; it starts them as there is room.

    Args:
        tasks: of the sweep.
        address: of a cluster, `auto` or `host:port`; None = one of this machine, which ends with this process.
        cpus: cores a job; None = as many as the override `threads` says.
        gpus: a job; may be a fraction.
        memory: GB a job; None = it is not counted.
        resources: further ones, by name.

    Raises:
        RequestError: there is no such cluster.
    """

    def __init__(
        self,
        tasks: Tasks,
        *,
        address: str | None = None,
        cpus: float | None = None,
        gpus: float = 0.0,
        memory: float | None = None,
        resources: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(tasks)
        self.cpus = cpus
        self._wanted: dict[str, Any] = {"num_gpus": gpus, "resources": dict(resources or {})}
        if memory is not None:
            self._wanted["memory"] = round(memory * 2**30)
        try:
            self._ray, self._started = cluster.connect(address)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise RequestError(f"launcher=ray: {str(error).strip().splitlines()[0]}") from error
        # The coordinator starts a lost job again, from its checkpoint.
        self._keep = self._ray.remote(max_retries=0)(RemoteRunner.__call__)

    @staticmethod
    def require(*, address: str | None = None, **rest: Any) -> None:
        """Refuse to begin without Ray, or without the cluster that is named.

        Raises:
            MissingExtra: it is not installed.
            RequestError: no cluster answers there; Ray itself would notice after some minutes.
        """
        cluster.require("launcher=ray")
        host, _, port = (address or "").rpartition(":")
        if host and port.isdecimal() and "/" not in host:
            try:
                socket.create_connection((host, int(port)), timeout=10.0).close()
            except OSError as error:
                raise RequestError(f"launcher.address={address}: nobody answers there: {reason(error)}") from error

    def submit(self, runners: Sequence[RemoteRunner], entries: Sequence[Entry]) -> Sequence[Any]:
        return [
            self._keep.options(num_cpus=self._cpus([entry]), **self._wanted).remote(runner)
            for runner, entry in zip(runners, entries, strict=True)
        ]

    def outcome(self, handle: Any) -> int | str | None:
        if not self._ray.wait([handle], timeout=0)[0]:
            return None
        try:
            return int(self._ray.get(handle))
        except Exception as error:
            return f"Ray lost it: {type(error).__name__}"

    def cancel(self, handles: Sequence[Any]) -> None:
        for handle in handles:
            with suppress(Exception):  # it has just ended, or the cluster has
                self._ray.cancel(handle)

    def workers(self, jobs: Iterable[Entry | Job]) -> int:
        jobs = list(jobs)
        return max(1, int(self._ray.cluster_resources().get("CPU", 1.0) // self._cpus(jobs)))

    def close(self) -> None:
        if self._started:
            self._ray.shutdown()

    def _cpus(self, entries: Iterable[Entry | Job]) -> float:
        return self.cpus or threads(entries)

"""Jobs that Slurm starts, by submitit; its local equivalent starts them on this machine in the same way."""

import importlib
import importlib.util
import logging
import os
import shutil
import signal
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from typing import Any

from rlrun.config.expansion import Job
from rlrun.core.errors import MissingExtra, RequestError, require_one_of
from rlrun.runs.processes import handled
from rlrun.sweep.job_store import Entry
from rlrun.sweep.local import Tasks, room, threads
from rlrun.sweep.remote import Remote, RemoteRunner

CLUSTERS = ("slurm", "local")
COMMANDS = ("sbatch", "srun", "scancel")
ARRAY = 1_000  # jobs of one array; what Slurm allows by default
REQUEUES = 1_000_000  # of a job that ran into the limit of its time: each time it came further
OVER = {
    *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"),
    *("REVOKED", "FINISHED", "INTERRUPTED"),  # the last two are those of the local executor
}


class Slurm(Remote):
    """Submit jobs as arrays.

    Args:
        tasks: of the sweep.
        cluster: `slurm`, or `local` for processes of this machine.
        partition, account, qos, constraint: as of `sbatch`; None = what Slurm takes by default.
        time: minutes that a job may take; one that takes longer is saved, and starts again.
        memory: GB a job; None = what Slurm gives by default.
        cpus: cores a job; None = as many as the override `threads` says.
        gpus: a job.
        parallel: jobs of one array running at a time; None = all.
        signal_delay: seconds before the end of its time in which a job saves.
        setup: commands of the shell before a job, such as `module load cuda`.
        python: command that is Python on the nodes; None = this one.
        srun: further arguments of `srun`.
        sbatch: further options of `sbatch`, by name.
    """

    def __init__(
        self,
        tasks: Tasks,
        *,
        cluster: str = "slurm",
        partition: str | None = None,
        account: str | None = None,
        qos: str | None = None,
        constraint: str | None = None,
        time: int = 720,
        memory: float | None = None,
        cpus: int | None = None,
        gpus: int = 0,
        parallel: int | None = None,
        signal_delay: int = 120,
        setup: Sequence[str] = (),
        python: str | None = None,
        srun: Sequence[str] = (),
        sbatch: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(tasks)
        self.here = cluster == "local"
        self.cpus = cpus
        self.parallel = parallel
        options: dict[str, Any] = {"signal_delay_s": signal_delay, "gpus_per_node": gpus or None, "setup": [*setup]}
        if self.here:
            options |= {"timeout_min": time}
        else:
            options |= {"job_name": f"rlrun-{tasks.folder.name}", "time": time, "array_parallelism": parallel}
            options |= {"partition": partition, "account": account, "qos": qos, "constraint": constraint}
            options |= {"mem": None if memory is None else f"{round(1024 * memory)}M", "srun_args": [*srun]}
            options |= {"additional_parameters": {"requeue": True, **(sbatch or {})}}
        submitit: Any = importlib.import_module("submitit")
        logging.getLogger("submitit").setLevel(logging.ERROR)
        make = submitit.LocalExecutor if self.here else submitit.SlurmExecutor
        self._executor = make(self.launches, max_num_timeout=REQUEUES, python=python)
        self._executor.update_parameters(**{name: value for name, value in options.items() if value is not None})
        command = ["sacct", "-n", "-X", "-j", "0"]
        answers = shutil.which("sacct") and not subprocess.run(command, capture_output=True, check=False).returncode
        self._knows = self.here or answers  # what became of a job

    @staticmethod
    def require(*, cluster: str = "slurm", parallel: int | None = None, endless: bool = False, **rest: Any) -> None:
        """Refuse to begin where jobs cannot be submitted.

        Raises:
            ConfigError: there is no such cluster.
            MissingExtra: submitit is not installed.
            RequestError: this machine has no Slurm; or jobs come as there is room for them, of which it has no end.
        """
        require_one_of("launcher.cluster", cluster, CLUSTERS)
        if importlib.util.find_spec("submitit") is None:
            raise MissingExtra("launcher=slurm", "submitit", "slurm")
        if cluster == "slurm" and not all(map(shutil.which, COMMANDS)):
            raise RequestError(
                f"launcher=slurm needs the commands {', '.join(COMMANDS)}, and this machine lacks them: start the "
                "sweep where jobs are submitted, or launcher.cluster=local"
            )
        if cluster == "slurm" and endless and parallel is None:
            raise RequestError(
                "launcher=slurm takes as many jobs as there are, and a search asks for one whenever there is room: say "
                "how many at a time, --workers N"
            )

    def submit(self, runners: Sequence[RemoteRunner], entries: Sequence[Entry]) -> Sequence[Any]:
        self._executor.update_parameters(cpus_per_task=self.cpus or threads(entries))
        jobs: list[Any] = []
        try:
            # Processes of this machine ignore Ctrl-C: the coordinator stops the jobs.
            with handled(signal.SIG_IGN, signal.SIGINT) if self.here else nullcontext():
                for first in range(0, len(runners), ARRAY):
                    jobs += self._executor.submit_array(runners[first : first + ARRAY])
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
            raise RequestError(f"launcher=slurm: the jobs cannot be submitted: {lines[-1]}") from error
        return jobs

    def outcome(self, handle: Any) -> int | str | None:
        if handle.paths.result_pickle.exists():
            try:
                return int(handle.result())
            except Exception as error:  # its remote runner's
                return f"its remote runner failed: {[type(error).__name__, *str(error).splitlines()][-1]}"
        state = handle.state.upper().split()[0] if self._knows else ""
        return f"{'submitit' if self.here else 'Slurm'} no longer has it: {state}" if state in OVER else None

    def cancel(self, handles: Sequence[Any]) -> None:
        if self.here:  # a remote runner that has not begun finds the marker; the others get what Slurm would send
            for handle in handles:
                with suppress(ProcessLookupError):
                    os.kill(int(handle.job_id), signal.SIGTERM)
        else:
            subprocess.run(["scancel", *(handle.job_id for handle in handles)], check=False, stderr=subprocess.DEVNULL)

    def workers(self, jobs: Iterable[Entry | Job]) -> int:
        jobs = list(jobs)
        return room(jobs) if self.here else max(1, len(jobs), self.parallel or 1)

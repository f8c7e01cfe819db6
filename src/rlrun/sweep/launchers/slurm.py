"""Run jobs by Slurm through submitit, or on this machine through submitit's local executor."""

import importlib
import importlib.util
import logging
import os
import shutil
import signal
import subprocess
import time as clock
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from rlrun.config.expansion import Job
from rlrun.core.errors import MissingExtra, RequestError, require_one_of
from rlrun.core.processes import handled
from rlrun.sweep.children import STOPPED, safe_path
from rlrun.sweep.command import JobCommand
from rlrun.sweep.launchers.local import room, threads

CLUSTERS = ("slurm", "local")
COMMANDS = ("sbatch", "srun", "scancel")
ARRAY = 1_000  # largest number of jobs in an array; Slurm's default limit
REQUEUES = 1_000_000  # restarts after a time limit: practically unlimited, as each one continues from a checkpoint
LOOK = 0.5  # seconds between two checks of a job
LATE = 5.0  # seconds that a result file may take from one machine to another
FAILED = 1  # exit code of a job that Slurm lost
OVER = {
    *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"),
    *("REVOKED", "FINISHED", "INTERRUPTED"),  # the last two come from the local executor
}


class SlurmJob:
    """A job that is or will be submitted to Slurm, with the methods of a process.

    Args:
        command: of the job.
        here: whether it runs on this machine.
        knows: whether Slurm can report the final state of jobs.
    """

    def __init__(self, command: JobCommand, *, here: bool, knows: bool) -> None:
        self.command = command
        self.submitted: Any = None  # submitit's job, once it is submitted
        self._here = here
        self._knows = knows
        self._asked = False
        self._looked = 0.0
        self._missed: float | None = None  # time when Slurm first did not list it any more, without a result

    def poll(self) -> int | None:
        if self.submitted is None or clock.monotonic() - self._looked < LOOK:
            return None
        self._looked = clock.monotonic()
        if self.submitted.paths.result_pickle.exists():
            try:
                return int(self.submitted.result())
            except Exception as error:
                return self._lost([type(error).__name__, *str(error).splitlines()][-1])
        state = self.submitted.state.upper().split()[0] if self._knows else ""
        self._missed = None if state not in OVER else self._missed or clock.monotonic()
        if self._missed is None or clock.monotonic() - self._missed < LATE:  # the result may still arrive
            return None
        return STOPPED if self._asked else self._lost(state)

    def terminate(self) -> None:
        self._asked = True
        self._signal("TERM")

    def kill(self) -> None:
        self._signal("KILL")

    def _signal(self, name: str) -> None:
        if self._here:  # its process passes SIGTERM on, and kills the job on a second one
            with suppress(ProcessLookupError):
                os.kill(int(self.submitted.job_id), signal.SIGTERM)
        else:
            command = ["scancel", *(["--signal=KILL"] if name == "KILL" else []), self.submitted.job_id]
            subprocess.run(command, check=False, stderr=subprocess.DEVNULL)

    def _lost(self, why: str) -> int:
        with open(self.command.log, "a", encoding="utf-8") as log:
            log.write(f"rlrun: {'submitit' if self._here else 'Slurm'} no longer has it: {why}\n")
        return FAILED


class Slurm:
    """Submit jobs to Slurm as arrays.

    Args:
        folder: of the sweep.
        cluster: `slurm`, or `local` for processes on this machine.
        partition, account, qos, constraint: as for `sbatch`; None = Slurm's default.
        time: minutes per job; a job that takes longer is saved and continued in a new allocation.
        memory: GB per job; None = Slurm's default.
        ranks: processes per job, started by torchrun.
        cpus: cores per job; None = the override `threads` times the ranks.
        gpus: per job.
        parallel: jobs of an array that run at a time; None = all.
        signal_delay: seconds before the time limit at which a job starts to save.
        setup: shell commands before a job, such as `module load cuda`.
        python: Python command on the nodes; None = the current one.
        srun: further arguments of `srun`.
        sbatch: further options of `sbatch`, by name.
    """

    def __init__(
        self,
        folder: Path,
        *,
        cluster: str = "slurm",
        partition: str | None = None,
        account: str | None = None,
        qos: str | None = None,
        constraint: str | None = None,
        time: int = 720,
        memory: float | None = None,
        ranks: int = 1,
        cpus: int | None = None,
        gpus: int = 0,
        parallel: int | None = None,
        signal_delay: int = 120,
        setup: Sequence[str] = (),
        python: str | None = None,
        srun: Sequence[str] = (),
        sbatch: dict[str, Any] | None = None,
    ) -> None:
        self.here = cluster == "local"
        self.cpus, self.ranks = cpus, ranks
        self.parallel = parallel
        options: dict[str, Any] = {"signal_delay_s": signal_delay, "gpus_per_node": gpus or None, "setup": [*setup]}
        if self.here:
            options |= {"timeout_min": time}
        else:
            options |= {"job_name": f"rlrun-{folder.name}", "time": time, "array_parallelism": parallel}
            options |= {"partition": partition, "account": account, "qos": qos, "constraint": constraint}
            options |= {"mem": None if memory is None else f"{round(1024 * memory)}M", "srun_args": [*srun]}
            options |= {"additional_parameters": {"requeue": True, **(sbatch or {})}}
        submitit: Any = importlib.import_module("submitit")
        logging.getLogger("submitit").setLevel(logging.ERROR)
        make = submitit.LocalExecutor if self.here else submitit.SlurmExecutor
        self._executor = make(folder / "launches" / uuid.uuid4().hex, max_num_timeout=REQUEUES, python=python)
        self._executor.update_parameters(**{name: value for name, value in options.items() if value is not None})
        command = ["sacct", "-n", "-X", "-j", "0"]
        answers = (
            shutil.which("sacct") is not None
            and not subprocess.run(command, capture_output=True, check=False).returncode
        )
        self._knows = self.here or answers  # whether final states of jobs can be read

    @staticmethod
    def require(*, cluster: str = "slurm", parallel: int | None = None, endless: bool = False, **rest: Any) -> None:
        """Refuse to begin if jobs cannot be submitted.

        Raises:
            ConfigError: there is no such cluster.
            MissingExtra: submitit is not installed.
            RequestError: this machine has no Slurm; or a search adds jobs for all free workers, and there is no limit.
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

    def start(self, command: JobCommand, slot: int) -> SlurmJob:
        """Add a job to the batch; it is submitted at the batch's end."""
        self._batch.append(SlurmJob(command, here=self.here, knows=self._knows))
        return self._batch[-1]

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Submit the jobs of a `with` block as arrays.

        Raises:
            RequestError: Slurm refuses them.
        """
        self._batch: list[SlurmJob] = []
        yield
        for first in range(0, len(self._batch), ARRAY):
            batch = self._batch[first : first + ARRAY]
            cpus = self.cpus or threads(task.command.job for task in batch) * self.ranks
            self._executor.update_parameters(cpus_per_task=cpus)
            try:
                # Local processes ignore Ctrl-C, as the scheduler stops the jobs.
                with safe_path(), handled(signal.SIG_IGN, signal.SIGINT) if self.here else nullcontext():
                    submitted = self._executor.submit_array([task.command for task in batch])
            except (RuntimeError, OSError, subprocess.SubprocessError) as error:
                lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
                raise RequestError(f"launcher=slurm: the jobs cannot be submitted: {lines[-1]}") from error
            for one, handle in zip(batch, submitted, strict=True):
                one.submitted = handle

    def workers(self, jobs: Iterable[Job]) -> int:
        """Return how many of these jobs to submit at a time."""
        jobs = list(jobs)
        return room(jobs, self.ranks) if self.here else max(1, len(jobs), self.parallel or 1)

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

"""What the process of a job does: train, or resume what an earlier process left."""

import shutil
import sys

from rlrun import config as configuration
from rlrun.commands import resume as resuming
from rlrun.commands import train as experiment
from rlrun.config.expansion import changeable, composed_of, identity
from rlrun.config.places import add_to_path
from rlrun.core.errors import ConfigError, Left, RlrunError
from rlrun.loading.assembly import tune_process
from rlrun.runs import processes
from rlrun.runs.directory import RunDir, is_run
from rlrun.runs.lock import locked
from rlrun.sweep.children import STOPPED
from rlrun.sweep.job_store import JOB_STORE, JobStore, Task

LEFT_BY_A_START = ("checkpoints", "config.yaml", "overrides.txt", "status.json", "lock", "manifest.json")


def carry_out(task: Task) -> int:
    """Run a job; return the exit code of its process, 75 also if another process has the job."""
    processes.listen()
    tune_process()
    try:
        if not _is_claimed(task):
            return STOPPED
        with processes.refused():
            result = _resumed(task) if is_run(task.run) else _begun(task)
    except (Left, KeyboardInterrupt):
        return STOPPED
    except BaseException as error:
        print("rlrun:", processes.describe_error(error), file=sys.stderr)
        if isinstance(error, RlrunError):
            return error.exit_code
        raise
    print(result.describe())
    return STOPPED if result.summary["status"] == "stopped" else 0


def _is_claimed(task: Task) -> bool:
    """Return True if this process alone runs a job, until it ends.

    A coordinator that died may have started one, or one may have waited in a queue since.

    Raises:
        RunDirError: files cannot be locked there.
    """
    if task.owner is None:
        return True
    if locked(task.folder / "logs" / f"{task.key}.lock") is None:  # till the end
        return False
    return JobStore(task.folder / JOB_STORE).is_owner(task.owner, task.key)


def _begun(task: Task) -> experiment.Result:
    if task.run.is_dir() and all(entry.name.lstrip(".").startswith(LEFT_BY_A_START) for entry in task.run.iterdir()):
        shutil.rmtree(task.run)  # its process was killed before the folder became a run
    if task.composed is not None:
        composed = composed_of(task.composed)
        add_to_path(composed.project)
        return experiment.train(composed, run_dir=task.run)
    composed = configuration.compose(task.overrides, config_dir=task.config_dir)
    if identity(composed.config) != task.key:
        raise ConfigError(
            "these overrides make another config than when the sweep began: conf/ has changed, or this is another "
            f"folder; a job of the config of now: rlrun train -m … --sweep-dir {task.folder}"
        )
    return experiment.train(composed, run_dir=task.run)


def _resumed(task: Task) -> experiment.Result:
    """Resume a run with the current overrides for its budget and other keys that may change."""
    recorded = RunDir(task.run).read_overrides()
    news = [override for override in changeable(task.overrides) if override not in recorded]
    return resuming.resume(task.run, news, trust=True)  # the coordinator has asked for the whole sweep

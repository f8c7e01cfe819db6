"""A sweep that is killed many times, and ends like an uninterrupted one; by each launcher.

24 jobs, four at a time. SIGKILL hits in turn the scheduler alone, one job, and the scheduler with all its descendants,
at random moments; the same command continues each time. Every job must finish once, resume from its own checkpoint,
and end bit by bit like the job of the uninterrupted sweep.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.identical import GROUPS, compare
from tests.processes import kill_all

from benchmarks.process import ROOT, THREADS, Failed
from rlrun.runs.directory import RunDir, checkpoint_key
from rlrun.sweep.directory import SweepDir

WORKERS, KILLS, STEPS = 4, 20, 1_500
VICTIMS = ("scheduler", "job", "all")  # of the kills, in turn
PATIENCE = 1_800.0  # seconds that a sweep may take
JOBS = (
    *("algorithm=dqn", "env.target=rlrun.env.toys.Bandit", "seed=range(12)", "algorithm.lr=1e-3,3e-4"),
    *("algorithm.hidden=[16]", "algorithm.batch_size=16", "algorithm.warmup_steps=100", "memory.length=1000"),
    *("algorithm.updates_per_step=0.5", f"stop.env_steps={STEPS}", "checkpoint.every=150", "log.every=500"),
    *("evaluation.every=0", "logger=[]"),
)
LAUNCHERS = {
    "local": ("launcher=local",),
    "slurm": ("launcher=slurm", "launcher.cluster=local"),
    "ray": ("launcher=ray", f"launcher.cpus={len(os.sched_getaffinity(0)) / WORKERS:g}"),
}


def measure(launchers: list[str] | None = None, *, jobs: tuple[str, ...] = JOBS, kills: int = KILLS) -> dict[str, Any]:
    """Return the outcome of a sweep by each launcher.

    Args:
        launchers: None = all.
        jobs: overrides of the sweep.
        kills: of each sweep.
    """
    with TemporaryDirectory() as place:
        folder = Path(place)
        _end(_start(["train", "-m", *jobs, "--sweep-dir", "whole"], folder), folder)
        return {name: one(name, folder, jobs, kills) for name in launchers or LAUNCHERS}


def one(name: str, folder: Path, jobs: tuple[str, ...], kills: int) -> dict[str, Any]:
    """Kill and continue a sweep; compare it with the sweep `whole` in the same folder."""
    overrides, begun, dice = [*jobs, *LAUNCHERS[name]], time.perf_counter(), random.Random(name)
    sweep = folder / name
    total = len(list((folder / "whole" / "jobs").iterdir())) * _budget(jobs)
    result: dict[str, Any] = {"words": overrides, "workers": WORKERS, "kills": [], "passed": False}
    command = ["train", "-m", *overrides, "--sweep-dir", name, "--retries", str(kills)]  # a killed job has failed
    try:
        process = _start(command, folder)
        for number, share in enumerate(sorted(dice.uniform(0.02, 0.9) for _ in range(kills))):
            _wait(process, lambda share=share: _saved(sweep) >= share * total)
            time.sleep(dice.uniform(0.0, 0.5))
            victim = VICTIMS[number % len(VICTIMS)]
            if victim == "job":
                _wait(process, lambda: _kill_a_job(sweep, dice))
            elif victim == "scheduler":
                process.send_signal(signal.SIGKILL)
                process.wait()
            else:
                kill_all(process)
            result["kills"].append({"victim": victim, **_at_a_kill(sweep)})
            if victim != "job":
                process = _start(command, folder)
        _end(process, folder)
        result |= _outcome(sweep, folder / "whole", result["kills"])
    except Failed as error:
        result["error"] = str(error).strip().splitlines()[-1]
    for kill in result["kills"]:
        del kill["checkpoints"], kill["at"]
    result["wall_seconds"] = round(time.perf_counter() - begun, 1)
    print(f"{name}: {'met' if result['passed'] else result.get('error', 'missed')}", flush=True)
    return result


def _outcome(sweep: Path, whole: Path, kills: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how the jobs of a sweep ended."""
    keys = [job.key for job in SweepDir(whole).jobs()]
    same = [compare(whole / "jobs" / key, sweep / "jobs" / key) for key in keys]
    logs = [(sweep / "logs" / f"{key}.txt").read_text() for key in keys]
    result = {
        "jobs": len(keys),
        "completed": [status.state for status in SweepDir(sweep).statuses()].count("completed"),
        # A process that waited in a queue may find the run finished; it says so, and writes nothing.
        "finished_once": sum(log.count("completed:") - log.count("the run is finished") == 1 for log in logs),
        "started_over": sum(_started_over(sweep / "jobs" / key, kills) for key in keys),
        "identical": {group: sum(matches[group] for matches in same) for group in GROUPS},
    }
    totals = (result["completed"], result["finished_once"], *result["identical"].values())
    return {**result, "passed": all(count == len(keys) for count in totals) and not result["started_over"]}


def _started_over(run: Path, kills: list[dict[str, Any]]) -> bool:
    """Return True if a job did not resume from its checkpoint of a kill before, or a later one."""
    resumed = json.loads((run / "manifest.json").read_text()).get("resumed", [])
    return any(
        (entry["checkpoint"] or "") < kill["checkpoints"].get(run.name, "")
        for entry in resumed
        for kill in kills
        if datetime.fromisoformat(entry["created"]) > kill["at"]
    )


def _kill_a_job(sweep: Path, dice: random.Random) -> bool:
    """Kill the process of a job that runs; return False if none does."""
    pids = [status["pid"] for status in (run.read_status() for run in _runs(sweep)) if status["status"] == "running"]
    with contextlib.suppress(ProcessLookupError):
        if pids:
            os.kill(dice.choice(pids), signal.SIGKILL)
            return True
    return False


def _at_a_kill(sweep: Path) -> dict[str, Any]:
    """Return how many jobs were in which state, and the checkpoints of unfinished jobs."""
    statuses, now = SweepDir(sweep).statuses(), datetime.now(UTC)
    states = Counter(status.state for status in statuses)
    unfinished = [RunDir(sweep / "jobs" / status.job.key) for status in statuses if status.state != "completed"]
    checkpoints = {
        run.path.name: (run.checkpoints / "latest").read_text().strip() for run in unfinished if _newest(run)
    }
    return {"states": dict(states), "with_a_checkpoint": len(checkpoints), "checkpoints": checkpoints, "at": now}


def _runs(sweep: Path) -> list[RunDir]:
    with contextlib.suppress(OSError):
        return [RunDir(path) for path in (sweep / "jobs").iterdir()]
    return []


def _newest(run: RunDir) -> int:
    """Return the environment steps that are safe: those of the checkpoint that `latest` names."""
    with contextlib.suppress(OSError, ValueError):
        return checkpoint_key(Path((run.checkpoints / "latest").read_text().strip()))[0]
    return 0


def _saved(sweep: Path) -> int:
    return sum(map(_newest, _runs(sweep)))


def _budget(overrides: tuple[str, ...]) -> int:
    return next(
        int(override.partition("=")[2]) for override in reversed(overrides) if override.startswith("stop.env_steps=")
    )


def _start(arguments: list[str], folder: Path) -> subprocess.Popen[bytes]:
    paths = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    with open(folder / "log.txt", "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "rlrun", *arguments, "--workers", str(WORKERS)],
            cwd=folder,
            env={**os.environ, **THREADS, "PYTHONPATH": paths},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _wait(process: subprocess.Popen[bytes], ready: Any) -> None:
    until = time.monotonic() + PATIENCE
    while not ready():
        if process.poll() is not None or time.monotonic() > until:
            kill_all(process)
            raise Failed(f"a sweep ended with {process.returncode} before it was killed")
        time.sleep(0.05)


def _end(process: subprocess.Popen[bytes], folder: Path) -> None:
    try:
        code: int | None = process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        kill_all(process)
        code = None
    if code != 0:
        raise Failed(f"a sweep ended with {code}: {(folder / 'log.txt').read_text()[-2_000:]}")

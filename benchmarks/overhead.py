"""What a sweep costs in addition to its jobs: 100 jobs of 1 s each, on two workers of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.process import Failed, environment
from benchmarks.speed import spread
from benchmarks.waiting import SECONDS

JOBS, WORKERS, STEPS = 100, 2, 10
BAR = 1.3  # times what the jobs take alone
GROWTH = 1.1  # of the memory at a fifth of the way
OVERRIDES = (
    *("algorithm=dqn", "env.target=benchmarks.waiting.Wait", f"stop.env_steps={STEPS}", "algorithm.hidden=[8]"),
    *("algorithm.warmup_steps=5", "algorithm.updates_per_step=1", "algorithm.batch_size=2", "memory.length=500"),
    *("evaluation.every=0", "logger=[]"),
)


def measure(*, rounds: int = 3, jobs: int = JOBS) -> dict[str, Any]:
    """Return the seconds from the command to its end, and the memory of the processes that stay, in MB."""
    ideal = jobs * STEPS * SECONDS / WORKERS
    records = [one(jobs) for _ in range(rounds)]
    ratio = spread([record["seconds"] / ideal for record in records])
    growth = spread([record["late"] / record["early"] for record in records])
    return {
        "jobs": jobs,
        "workers": WORKERS,
        "ideal": ideal,
        "seconds": spread([record["seconds"] for record in records]),
        "ratio": ratio,
        "early": spread([record["early"] for record in records]),
        "late": spread([record["late"] for record in records]),
        "growth": growth,
        "bar": BAR,
        "bar_growth": GROWTH,
        "passed": ratio["median"] <= BAR and growth["median"] <= GROWTH,
    }


def one(jobs: int) -> dict[str, float]:
    """Run a sweep once."""
    with TemporaryDirectory() as folder:
        sweep = Path(folder) / "sweep"
        arguments = [*OVERRIDES, f"seed=range({jobs})", "--sweep-dir", str(sweep), "--workers", str(WORKERS)]
        log = Path(folder) / "log.txt"
        with log.open("w") as out:
            begun = time.perf_counter()
            command = [sys.executable, "-m", "rlrun", "train", "-m", *arguments]
            process = subprocess.Popen(command, cwd=folder, env=environment(), stdout=out, stderr=out)
        sizes: list[tuple[int, float]] = []
        watcher = threading.Thread(target=_watch, args=(process.pid, sweep / "jobs", sizes), daemon=True)
        watcher.start()
        try:
            code = process.wait()
        except BaseException:
            process.send_signal(signal.SIGTERM)
            raise
        seconds = time.perf_counter() - begun
        if code != 0:
            raise Failed(f"the sweep exited with {code}: {log.read_text()[-2_000:]}")
        early = next(size for count, size in sizes if count >= jobs // 5)
        return {"seconds": seconds, "early": early, "late": sizes[-1][1]}


def _watch(pid: int, jobs: Path, sizes: list[tuple[int, float]]) -> None:
    """Note twice a second how many jobs were begun, and what scheduler and fork server hold."""
    while True:
        try:
            usage = [_resident(process) for process in (pid, *_servers(pid))]
            begun = len(os.listdir(jobs)) if jobs.is_dir() else 0
        except OSError:  # it is over
            return
        if None not in usage:
            sizes.append((begun, sum(filter(None, usage))))
        time.sleep(0.5)


def _servers(pid: int) -> list[int]:
    """Return the processes that a process started itself."""
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _resident(pid: int) -> float | None:
    """Return what a process holds, in MB; None of one that is just ending."""
    fields = Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()
    return int(fields[0]) / 1024 if fields else None

"""Runs that are killed many times, and end like the uninterrupted run.

Each cell trains once without a stop, and once more while SIGKILL hits the process at random moments, every other time
during the writing of a checkpoint; `rlrun resume` continues each time. Parameters, optimizers, memory, generators and
metrics must be the same bits at the end, and no checkpoint that shows may be damaged. Processes are children of one
that has imported everything already, so that what takes time is training, not importing.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import random
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.forked import Child, start
from tests.identical import compare, differing
from tests.resume.kills import APPROXIMATE, CELLS, DELAY, EXTRAS, Stuck, torment

from benchmarks import leaving, ranks
from benchmarks.process import Failed
from rlrun.core.errors import RlrunError

KILLS = 20  # of a cell
PARTS: dict[str, Callable[[int, int], dict[str, Any]]] = {  # what is no cell
    "leaving": lambda kills, workers: leaving.one_cell(times=kills, workers=workers),
    "ranks": lambda kills, workers: ranks.one_cell(kills=kills, nodes=1),
    "ranks-2-nodes": lambda kills, workers: ranks.one_cell(kills=kills, nodes=2),
}


def available() -> list[str]:
    """Return the cells whose environments are installed."""
    return [
        name
        for name in CELLS
        if all(importlib.util.find_spec(package) for task, package in EXTRAS.items() if task in name)
    ]


def measure(names: list[str] | None = None, *, kills: int = KILLS, workers: int = 2) -> dict[str, Any]:
    """Return the outcome of each cell.

    Args:
        names: of cells and `PARTS`; None = all that can run here.
        kills: of each; and how often each way to stop is tried.
        workers: cells at a time.
    """
    names = names or [*available(), *PARTS]
    cells = [name for name in names if name not in PARTS]
    results = {name: PARTS[name](kills, workers) for name in names if name in PARTS}
    with ThreadPoolExecutor(workers) as pool:
        return results | dict(zip(cells, pool.map(lambda name: one_cell(name, kills=kills), cells), strict=True))


def one_cell(name: str, *, kills: int) -> dict[str, Any]:
    """Train without a stop and with many; an error is in the result, and stops no other cell."""
    overrides, begun = list(CELLS[name]), time.perf_counter()
    result: dict[str, Any] = {"words": overrides, "wanted": kills, "passed": False}
    with TemporaryDirectory() as place:
        folder, log = Path(place), Path(place) / "log.txt"
        whole, killed = folder / "whole", folder / "killed"
        try:
            begun_here: list[Child] = []

            def begin(request: list[str]) -> Child:
                begun_here.append(start(request, folder=folder, log=log))
                return begun_here[-1]

            _end(begin(["train", *overrides, "--run-dir", str(whole)]), log)
            # Half of what a fast run takes from one kill to the next, or it ends before it was killed often enough.
            delay = min(DELAY, 0.5 * (time.perf_counter() - begun) / kills)
            story = torment(overrides, killed, begin, kills=kills, dice=random.Random(name), delay=delay)
            result["left_behind"] = sum(map(_outlived, begun_here))
            same = compare(whole, killed)
            resume = json.loads((killed / "manifest.json").read_text()).get("resume")
            result |= {
                **vars(story),
                "identical": same,
                "resume": resume,
                "passed_over": log.read_text().count("resuming from checkpoint"),
            }
            clean = not story.damaged and not result["left_behind"] and story.kills == kills
            expected = "approximate" if name in APPROXIMATE else "exact"
            result["passed"] = clean and resume == expected and (expected == "approximate" or all(same.values()))
            if story.kills < kills:
                result["error"] = f"it ended after {story.kills} of {kills} kills"
            if not all(same.values()):
                result["differing"] = differing(whole, killed)[:20]
        except (Failed, Stuck, RlrunError) as error:
            result["error"] = str(error).strip().splitlines()[-1]
    result["wall_seconds"] = round(time.perf_counter() - begun, 1)
    print(f"{name}: {'identical' if result['passed'] else result.get('error', 'not identical')}", flush=True)
    return result


def _outlived(process: Child) -> bool:
    """Return True if workers of a process still run some seconds after its end, and kill them."""
    with contextlib.suppress(ProcessLookupError):
        for _ in range(100):
            os.killpg(process.pid, 0)
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGKILL)
        return True
    return False


def _end(process: Child, log: Path) -> None:
    if process.wait() != 0:
        raise Failed(f"exited with {process.returncode}: {log.read_text()[-2_000:]}")

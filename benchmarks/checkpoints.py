"""What checkpoints of a full memory cost: the stall of training, the disk, the way back, and looking at them.

Stages run in processes of their own: python -m benchmarks.checkpoints growing|full|load FOLDER prints one JSON object.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.machine import load as busy
from benchmarks.process import run, run_for_json
from benchmarks.rivals.case import ACTION, EPISODE, OBSERVATION, Case, episode
from benchmarks.rivals.rlrun import make, writer
from benchmarks.speed import spread
from rlrun import checkpointing as storage
from rlrun.callbacks import Checkpointer
from rlrun.commands.checkpoints import checkpoints, disk_used
from rlrun.memory import Table
from rlrun.runs.directory import RunDir

CASE = Case("sample")
NEW_ROWS = 20_000  # between two checkpoints
SAVES = 10
LISTED = 1_000
WAIT = 120.0
BARS = {"later_stall": 0.150, "load": 10.0, "growing_disk": 1.3, "list": 2.0}
WHAT = {
    "first_stall": "stall of the first save, seconds",
    "later_stall": f"stall of a save after {NEW_ROWS:,} new rows, the longest of {SAVES}, seconds",
    "later_write": f"until such a save is on disk, the longest of {SAVES}, seconds",
    "load": "load the newest and take it back, seconds",
    "growing_disk": f"disk of {SAVES} checkpoints of a memory that grows to its capacity / of the newest alone",
    "overwriting_disk": f"disk of {SAVES + 1} checkpoints of a full memory / of the newest alone",
    "list": f"`rlrun checkpoints` of {LISTED:,} checkpoints, processor seconds",
    "verify": f"`rlrun checkpoints --verify` of {SAVES + 1} checkpoints, processor seconds",
    "digests": f"`rlrun checkpoints --json` of {SAVES + 1} checkpoints, processor seconds",
}


def measure(*, rounds: int = 5) -> dict[str, Any]:
    """Return each figure with its spread over the rounds, and whether it is within its bar in the median."""
    samples: dict[str, list[float]] = {name: [] for name in WHAT}
    loads = []
    for number in range(rounds):
        loads.append(busy())
        with TemporaryDirectory() as folder:
            figures = one_round(Path(folder))
        print(f"checkpoints round {number + 1}: {figures}", flush=True)
        for name, figure in figures.items():
            samples[name].append(figure)
    results = {name: {"what": WHAT[name], **spread(figures)} for name, figures in samples.items()}
    for name, bar in BARS.items():
        results[name] |= {"bar": bar, "passed": results[name]["median"] <= bar}
    passed = all(results[name]["passed"] for name in BARS)
    memory = f"{CASE.capacity:,} transitions of ({OBSERVATION}, {ACTION}) numbers"
    return {"memory": memory, "load": loads, "figures": results, "passed": passed}


def one_round(folder: Path) -> dict[str, float]:
    """Measure everything once."""
    growing, full, many = (str(folder / name) for name in ("growing", "full", "many"))
    figures = {"growing_disk": stage("growing", growing)["disk"]}
    saved = stage("full", full)
    figures |= {"first_stall": saved["stalls"][0], "later_stall": max(saved["stalls"][1:])}
    figures |= {"later_write": max(saved["writes"][1:]), "overwriting_disk": saved["disk"]}
    figures |= {"load": stage("load", full)["seconds"]}
    multiply(RunDir.open(full), Path(many))
    for name, arguments in {"list": [many], "verify": [full, "--verify"], "digests": [full, "--json"]}.items():
        figures[name] = run(["-m", "rlrun", "checkpoints", *arguments], folder=folder).processor_seconds
    return figures


def stage(name: str, folder: str) -> dict[str, Any]:
    """Run a stage in a process of its own."""
    return run_for_json(["-m", "benchmarks.checkpoints", name, folder], folder=Path(folder).parent)


class Training:
    """A memory, two networks and an optimizer, saved as in a run."""

    def __init__(self, folder: str, case: Case = CASE) -> None:
        self.case = case
        self.table: Table = make(case)
        self.rows = 0
        self.parts: dict[str, Any] = {"memory": self.table}
        for name in ("critic", "policy"):
            inner = [nn.Linear(OBSERVATION + ACTION, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()]
            self.parts[f"networks.{name}"] = network = nn.Sequential(*inner, nn.Linear(256, 1))
            self.parts[f"adam.{name}"] = adam = torch.optim.Adam(network.parameters())
            network(torch.zeros(1, OBSERVATION + ACTION)).sum().backward()
            adam.step()
        self.run = RunDir(folder)
        self.saver = Checkpointer(1, keep_last=None)

    def begin(self) -> None:
        """Make the run's folder, and have everything saved in it from now on."""
        self.run = RunDir.claim(self.run.path)
        self.run.start(config="{}\n", overrides=[], manifest={})
        self.saver.begin_training(self.parts, self.run.path)
        self.generator = np.random.Generator(np.random.PCG64(0))
        self.episode = episode(self.case)
        self.write = writer(self.table, self.episode)

    def collect(self, rows: int) -> None:
        """Add rows, by whole episodes, of which no two are alike: equal ones might be kept once."""
        for _ in range(rows // EPISODE):
            for numbers in (self.episode.observation, self.episode.action, self.episode.reward):
                self.generator.standard_normal(dtype=np.float32, out=numbers)
            self.write()
        self.rows += rows

    def save(self) -> tuple[float, float]:
        """Return for how long a save holds up training, and how long it takes until the disk has it."""
        before = self._latest()
        start = time.perf_counter()
        self.saver.end_cycle(self.rows, self.rows)
        stall = time.perf_counter() - start
        while self._latest() == before:
            if time.perf_counter() - start > WAIT:
                raise TimeoutError(f"no checkpoint appeared within {WAIT} s")
            time.sleep(0.001)
        return stall, time.perf_counter() - start

    def _latest(self) -> str:
        pointer = self.run.checkpoints / "latest"
        return pointer.read_text() if pointer.is_file() else ""

    def disk(self) -> float:
        """Return the disk that all checkpoints take, by what the newest would take alone."""
        return disk_used(self.run) / checkpoints(self.run)[-1].size_with_shared


def growing(folder: str, case: Case = CASE) -> dict[str, Any]:
    """Save ten times while a memory grows, the last time at its capacity."""
    training = Training(folder, case)
    training.begin()
    for _ in range(SAVES):
        training.collect(case.capacity // SAVES)
        training.save()
    return {"disk": training.disk()}


def full(folder: str, case: Case = CASE) -> dict[str, Any]:
    """Fill a memory, save it, and save it again ten times after new rows."""
    training = Training(folder, case)
    training.begin()
    training.collect(case.capacity + EPISODE)
    saves = [training.save()]
    for _ in range(SAVES):
        training.collect(NEW_ROWS)
        saves.append(training.save())
    stalls, writes = zip(*saves, strict=True)
    return {"stalls": stalls, "writes": writes, "disk": training.disk()}


def load(folder: str, case: Case = CASE) -> dict[str, Any]:
    """Load the newest checkpoint into new parts."""
    training = Training(folder, case)
    start = time.perf_counter()
    states = storage.load(training.run.checkpoint("latest"), training.parts)
    for name, part in training.parts.items():
        part.load_state_dict(states[name])
    return {"seconds": time.perf_counter() - start, "rows": len(training.table)}


def multiply(run: RunDir, folder: Path, count: int = LISTED) -> None:
    """Copy the checkpoints of a run until a new run has `count` of them."""
    target = RunDir.claim(folder)
    target.start(config="{}\n", overrides=[], manifest={})
    dirs = run.checkpoint_dirs()
    for entry in run.checkpoints.iterdir():
        if entry.is_dir() and entry not in dirs:
            shutil.copytree(entry, target.checkpoints / entry.name, copy_function=os.link)
    for number in range(count):
        where = target.checkpoints / f"{number:010d}-{number:010d}"
        shutil.copytree(dirs[number % len(dirs)], where, copy_function=os.link)


STAGES: dict[str, Callable[[str], dict[str, Any]]] = {"growing": growing, "full": full, "load": load}


if __name__ == "__main__":
    print(json.dumps(STAGES[sys.argv[1]](sys.argv[2])))

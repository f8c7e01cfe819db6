"""Particle inference next to numpyro's: a regression by networks whose rows leave a gap.

Rows are sin(2x) and noise of a known deviation, with x from [-2, -0.7] and [0.7, 2]. Held-out rows come from there and
from the gap between. A network 1-50-1 has the same activation, prior, particles and updates on both sides, and first
weights from the same density. Each library has the best of three learning rates by data and seeds that the results do
not use. Further rows of rlrun take that of its SVGD.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from benchmarks.machine import load
from benchmarks.process import run_for_json
from benchmarks.rivals.environments import REQUIREMENTS, interpreter
from rlrun.core.typing import Array
from rlrun.memory import Split

GAP, END = 0.7, 2.0  # |x| of the rows to learn from
ROWS, PLACES = 100, 200  # rows, a fifth of which rlrun holds out; held-out rows in the intervals, and in the gap
NUMBERS = {"hidden": 50, "prior": 1.0, "deviation": 0.2, "particles": 10}
UPDATES = 1_000
OVERRIDES = (
    *("algorithm=functional_particles", "data=file", "algorithm.loss=regression", "algorithm.network.activation=tanh"),
    f"algorithm.network.hidden=[{NUMBERS['hidden']}]",
    *(f"algorithm.{name}={NUMBERS[name]}" for name in ("prior", "deviation", "particles")),
    f"algorithm.batch_size={ROWS * 4 // 5}",
)
RLRUN, RIVAL = "rlrun", "numpyro"
OURS = {
    RLRUN: (),
    "rlrun, gfsf": ("algorithm.method=gfsf",),
    "rlrun, functions": ("algorithm.functional=true",),
}
RATES = (1e-3, 3e-3, 1e-2)  # of Adam
DATA, OTHERS = 0, (100, 101)  # seeds of the data; the others, also of the weights, choose the rates


class Job(NamedTuple):
    """A run: its side, the learning rate, and the seeds of the data and of the first weights."""

    side: str
    lr: float
    data: int
    seed: int


def rows_of(seed: int, folder: Path) -> tuple[Path, Path, Array]:
    """Write a file for rlrun, and one with the rows that it learns from and the places of held-out rows.

    Returns: both, and the held-out labels [2 PLACES], first those of the intervals.
    """
    draw = np.random.default_rng(seed)

    def labeled(x: Array) -> tuple[Array, Array]:
        y = np.sin(2.0 * x) + NUMBERS["deviation"] * draw.standard_normal(len(x))
        return x.astype(np.float32)[:, None], y.astype(np.float32)[:, None]

    def apart(count: int) -> Array:
        return draw.uniform(GAP, END, count) * draw.choice((-1.0, 1.0), count)

    source, rows = folder / f"source{seed}.npz", folder / f"rows{seed}.npz"
    x, y = labeled(apart(ROWS))
    np.savez(source, observation=x, label=y)
    train = Split(str(source), fraction=0.2, seed=0).train
    learned = train.batch(np.arange(len(train)))
    places, labels = labeled(np.concatenate((apart(PLACES), draw.uniform(-GAP, GAP, PLACES))))
    np.savez(rows, observation=learned["observation"], label=learned["label"], places=places)
    return source, rows, labels[:, 0]


def log_likelihood(outputs: Array, labels: Array, deviation: float) -> Array:
    """Return the log of the mean density of labels [P] by the particles' outputs [N, P]: [P]."""
    exponents = -0.5 * ((outputs - labels) / deviation) ** 2
    density: Array = np.logaddexp.reduce(exponents, axis=0) - np.log(len(outputs))
    return density - np.log(deviation * np.sqrt(2.0 * np.pi))


def measure(*, seeds: Iterable[int] = range(5), updates: int = UPDATES) -> dict[str, Any]:
    """Return the log-likelihoods of all sides, whose seeds are those of the first weights."""
    seeds, tried = list(seeds), {side: tries(side, updates) for side in (RLRUN, RIVAL)}
    best = {side: max(RATES, key=lambda lr: statistics.mean(tried[side][lr])) for side in tried}
    ours = iter(batch([Job(side, best[RLRUN], DATA, seed) for seed in seeds for side in OURS], updates))
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in OURS}
    for _ in seeds:
        for side in OURS:
            runs[side].append(next(ours))
    runs[RIVAL] = batch([Job(RIVAL, best[RIVAL], DATA, seed) for seed in seeds], updates)
    return summary(runs, tried) | {"updates": updates, "load": load()}


def tries(side: str, updates: int) -> dict[float, list[float]]:
    """Return the mean log-likelihood by learning rate, of each seed that chooses."""
    jobs = [Job(side, lr, seed, seed) for lr in RATES for seed in OTHERS]
    values: dict[float, list[float]] = {lr: [] for lr in RATES}
    for job, result in zip(jobs, batch(jobs, updates), strict=True):
        values[job.lr].append(result["all"])
    return values


def batch(jobs: list[Job], updates: int) -> list[dict[str, Any]]:
    """Train in one process; return mean log-likelihoods of held-out rows: of all, in the intervals and in the gap.

    Args:
        jobs: of sides of rlrun, or of numpyro's.
        updates: of each.

    Raises:
        Failed: the process failed.
    """
    with TemporaryDirectory() as place:
        folder, works, labels = Path(place), [], []
        for number, job in enumerate(jobs):
            source, rows, wanted = rows_of(job.data, folder)
            labels.append(wanted)
            overrides = [*OVERRIDES, *OURS.get(job.side, ()), f"algorithm.lr={job.lr}", f"data.dataset={source}"]
            overrides += [f"seed={job.seed}", f"stop.updates={updates}"]
            run = {"rows": str(rows), "run_dir": str(folder / f"run{number}"), "overrides": overrides}
            works.append({**NUMBERS, "updates": updates, "lr": job.lr, "seed": job.seed, **run})
        library = RIVAL if jobs[0].side == RIVAL else RLRUN
        (folder / "works.json").write_text(json.dumps(works))
        module = ["-m", f"benchmarks.rivals.particles_{library}", str(folder / "works.json")]
        python = interpreter(RIVAL) if library == RIVAL else sys.executable
        results = run_for_json(module, folder=folder, python=python)["results"]
    records = []
    for job, result, wanted in zip(jobs, results, labels, strict=True):
        values = log_likelihood(np.array(result.pop("outputs")), wanted, NUMBERS["deviation"])
        parts = {"all": values, "intervals": values[:PLACES], "gap": values[PLACES:]}
        records.append({**job._asdict(), **{name: float(part.mean()) for name, part in parts.items()}, **result})
        print(f"{job}: {records[-1]['all']:.4f} ({result['seconds']:.1f} s)", flush=True)
    return records


def summary(runs: dict[str, list[dict[str, Any]]], tried: dict[str, dict[float, list[float]]]) -> dict[str, Any]:
    """Return the runs, and the mean of rlrun's SVGD less that of numpyro, with its standard error."""
    values = [[run["all"] for run in runs[side]] for side in (RLRUN, RIVAL)]
    gain = statistics.mean(values[0]) - statistics.mean(values[1])
    return {
        "words": list(OVERRIDES),
        "requirement": REQUIREMENTS[RIVAL],
        "tried": tried,
        "sides": {side: {"words": list(OURS.get(side, ())), "runs": runs[side]} for side in runs},
        "gain": gain,
        "error": sum(statistics.variance(part) / len(part) for part in values) ** 0.5,
        "passed": gain >= 0.0,
    }

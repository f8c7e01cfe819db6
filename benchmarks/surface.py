"""Returns of DQN over learning rate and target period, measured at the points of a grid, and runs drawn from these.

A study of a search takes a quarter of an hour, and its result is mostly luck: a comparison of two ways of searching
takes hundreds of them. So the runs are made once, some seeds at each point, and studies draw theirs from what was
measured: the mean curve of the four points around, by their distance, and on top of it the deviation of one run of one
of these points from the mean there.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import yaml

from benchmarks.process import run
from rlrun.runs.directory import RunDir

RATES = (1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
PERIODS = (1, 9, 26, 76, 225, 670, 2000)
SEEDS = 4
OVERRIDES = (
    *("algorithm=dqn", "env=cartpole", "preset=null", "algorithm.hidden=[64]", "algorithm.batch_size=64"),
    *("algorithm.tau=1.0", "algorithm.epsilon.steps=2_000", "algorithm.warmup_steps=500"),
    *("algorithm.updates_per_step=0.5", "stop.env_steps=10_000"),
    *("evaluation.every=1000", "evaluation.episodes=5", "evaluation.max_steps=500"),
    *("checkpoint.every=0", "checkpoint.keep_best=false", "logger=[]", "log.every=0"),
)

Curves = dict[str, list[list[float]]]  # "rate period" -> for each seed the mean returns of its evaluations


def measure(*, workers: int = 2, rates: Any = RATES, periods: Any = PERIODS, overrides: Any = OVERRIDES) -> Curves:
    """Train at every point of the grid; some hundred runs."""
    with TemporaryDirectory() as folder:
        swept = [f"algorithm.lr={','.join(map(str, rates))}", f"algorithm.target_every={','.join(map(str, periods))}"]
        arguments = [*overrides, *swept, f"seed=range({SEEDS})", "--sweep-dir", "sweep", "--workers", str(workers)]
        run(["-m", "rlrun", "train", "-m", *arguments], folder=Path(folder))
        return read(Path(folder) / "sweep")


def read(sweep: Path) -> Curves:
    """Return what the jobs of a sweep have come to."""
    curves: dict[tuple[float, int], dict[int, list[float]]] = {}
    for path in (sweep / "jobs").iterdir():
        job = RunDir(path)
        config = yaml.safe_load(job.config.read_text())
        records = map(json.loads, job.metrics.read_text().splitlines())
        curve = [record["evaluation/mean_return"] for record in records if "evaluation/mean_return" in record]
        point = float(config["algorithm"]["lr"]), int(config["algorithm"]["target_every"])
        curves.setdefault(point, {})[config["seed"]] = [round(value, 2) for value in curve]
    return {
        f"{rate:g} {period}": [runs[seed] for seed in sorted(runs)] for (rate, period), runs in sorted(curves.items())
    }


class Surface:
    """Runs at any learning rate and period within the grid.

    Args:
        curves: of the points of the grid, all of them as long and with as many seeds.
    """

    def __init__(self, curves: Curves) -> None:
        points = [(float(rate), int(period)) for rate, period in map(str.split, curves)]
        self.axes = [np.log(sorted(set(axis))) for axis in zip(*points, strict=True)]
        shape = tuple(len(axis) for axis in self.axes)
        runs = np.array([curves[key] for _, key in sorted(zip(points, curves, strict=True))])  # [points, seeds, time]
        self.runs = runs.reshape(*shape, *runs.shape[1:])
        self.mean = self.runs.mean(2)  # [rates, periods, time]
        # A mean of few runs is closer to them than the mean of many would be.
        self.luck = (self.runs - self.mean[:, :, None]) * math.sqrt(runs.shape[1] / (runs.shape[1] - 1))

    def expected(self, rate: float, period: float) -> Any:
        """Return the mean curve [time]."""
        (i, a), (j, b) = self._place(rate, 0), self._place(period, 1)
        below = (1 - b) * self.mean[i, j] + b * self.mean[i, j + 1]
        above = (1 - b) * self.mean[i + 1, j] + b * self.mean[i + 1, j + 1]
        return (1 - a) * below + a * above

    def drawn(self, rate: float, period: float, draw: np.random.Generator) -> Any:
        """Return the curve [time] of a run."""
        (i, a), (j, b) = self._place(rate, 0), self._place(period, 1)
        near = self.luck[i + (draw.random() < a), j + (draw.random() < b)]
        return self.expected(rate, period) + near[draw.integers(len(near))]

    @property
    def best(self) -> float:
        """The largest mean of an expected curve; it is at a point of the grid."""
        return float(self.mean.mean(-1).max())

    def _place(self, value: float, axis: int) -> tuple[int, float]:
        """Return the point of the grid below a number, and how far it is on the way to the next."""
        points, at = self.axes[axis], math.log(value)
        index = int(np.clip(np.searchsorted(points, at, side="right") - 1, 0, len(points) - 2))
        return index, float(np.clip((at - points[index]) / (points[index + 1] - points[index]), 0.0, 1.0))

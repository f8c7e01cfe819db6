"""Estimates of the mutual information of correlated Gaussians, against what is known of it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.process import run, run_for_json
from rlrun.core.typing import Array
from rlrun.memory.loaders.held_out import gaussians

TOLERANCE = 0.03  # nats by which an estimate may exceed what it bounds, by chance of the held-out rows
ROWS = 2_000_000  # of the jsd bound of the true densities: its error is about 0.0005
MISSING = "share of the known value that the estimate lacks"

Case = tuple[int, float, str, str, float]  # numbers in x, correlation, estimator, sampler, bar
CASES: list[Case] = [
    *((2, 0.8, estimator, "buffer", 0.1) for estimator in ("dv", "kld", "jsd", "ml")),
    *((20, 0.5, estimator, "buffer", 0.4 / 2.877) for estimator in ("dv", "kld", "ml")),
    (20, 0.5, "dv", "shuffle", 0.6 / 2.877),
]


def overrides(case: Case) -> tuple[str, ...]:
    """Return the overrides of a run."""
    size, correlation, estimator, sampler, _ = case
    data = (f"data.dataset.size={size}", f"data.dataset.correlation={correlation}")
    return "algorithm=mutual_information", *data, f"algorithm.estimator={estimator}", f"algorithm.sampler={sampler}"


def known(size: int, correlation: float, estimator: str) -> float:
    """Return the information in nats, or what jsd bounds."""
    if estimator != "jsd":
        return -0.5 * size * math.log(1.0 - correlation**2)
    rows: dict[str, Any] = gaussians(rows=ROWS, size=size, correlation=correlation, seed=1)

    def log_ratio(x: Array, y: Array) -> Array:
        square = 1.0 - correlation**2
        pairs = (correlation**2 * (x**2 + y**2) - 2.0 * correlation * x * y) / square
        ratio: Array = -0.5 * (pairs + math.log(square)).sum(-1)
        return ratio

    joint, product = log_ratio(rows["x"], rows["y"]), log_ratio(rows["x"], np.roll(rows["y"], 1, 0))
    return float(math.log(4.0) - np.logaddexp(0.0, -joint).mean() - np.logaddexp(0.0, product).mean())


def missing(overrides: list[str], folder: Path) -> float:
    """Return the share of the known value that the best estimate on held-out rows lacks; 1 if it exceeds that value."""
    run_dir = folder / "run"
    run(["-m", "rlrun", "train", *overrides, "logger=[]", "--run-dir", str(run_dir)], folder=folder)
    report = run_for_json(["-m", "rlrun", "eval", str(run_dir), "--checkpoint", "best", "--json"], folder=folder)
    set_to = dict(override.split("=", 1) for override in overrides)
    size, correlation = int(set_to["data.dataset.size"]), float(set_to["data.dataset.correlation"])
    value = known(size, correlation, set_to["algorithm.estimator"])
    estimate = float(report["metrics"]["information"])
    return 1.0 if estimate > value + TOLERANCE else (value - estimate) / value

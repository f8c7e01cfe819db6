"""Processor time from the command to its answer, and to the first environment step."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.process import run
from benchmarks.speed import spread

OVERRIDES = ("algorithm=sac", "env=cartpole")
BARS = {"help": 0.3, "config": 1.0, "first_step": 5.0}


def measure(*, rounds: int = 5) -> dict[str, Any]:
    """Return the processor seconds of `--help`, `config` and of `train` up to its first environment step."""
    times: dict[str, list[float]] = {name: [] for name in BARS}
    for _ in range(rounds):
        with TemporaryDirectory() as folder:
            for name, seconds in one_round(Path(folder)).items():
                times[name].append(seconds)
    results = {name: {**spread(seconds), "bar": BARS[name]} for name, seconds in times.items()}
    return {name: {**result, "passed": result["median"] < result["bar"]} for name, result in results.items()}


def one_round(folder: Path) -> dict[str, float]:
    """Measure each command once."""
    return {
        "help": run(["-m", "rlrun", "--help"], folder=folder).processor_seconds,
        "config": run(["-m", "rlrun", "config", *OVERRIDES], folder=folder).processor_seconds,
        "first_step": first_step(folder),
    }


def first_step(folder: Path) -> float:
    """Train, with a wrapper that ends the run as its environment is stepped for the first time."""
    note = folder / "first_step"
    wrapper = f"env.wrappers=[{{_target_:benchmarks.probe.FirstStep,_partial_:true,path:{note}}}]"
    run(["-m", "rlrun", "train", *OVERRIDES, wrapper, "--run-dir", str(folder / "run")], folder=folder)
    return float(note.read_text())

"""Steady-state speed of runs against hand-written loops of the same parts; ratios are taken within a round."""

from __future__ import annotations

import statistics
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.machine import load
from benchmarks.process import Failed, run_for_json
from benchmarks.side import CASES, Case

Sides = dict[str, dict[str, float]]
SAME = ("parameters", "steps_of_optimizers")  # must agree, or the two sides did not do the same work


def measure(names: list[str] | None = None, *, rounds: int = 5) -> dict[str, Any]:
    """Return, for each case, the speeds of both sides and the ratios of every round."""
    return {name: measure_case(name, CASES[name], rounds=rounds) for name in names or list(CASES)}


def measure_case(name: str, case: Case, *, rounds: int) -> dict[str, Any]:
    """Run both sides, one after the other, and compare them round by round."""
    rows = []
    for number in range(rounds):
        before = load()
        sides = one_round(name, case)
        ratios = {clock: sides["bare"][clock] / sides["rlrun"][clock] for clock in ("seconds", "processor_seconds")}
        rows.append({"load": before, "ratio": ratios, **sides})
        print(
            f"{name} round {number + 1}: {ratios['seconds']:.3f} of the speed of the loop (load {before})", flush=True
        )
    return summary(case, rows)


def one_round(name: str, case: Case) -> Sides:
    """Run the loop, then the run, each in a process of its own.

    Raises:
        Failed: a side failed, or the two did not make the same optimizer steps on as many parameters.
    """
    with TemporaryDirectory() as folder:
        window = [str(case.first), str(case.last)]
        sides = {
            side: run_for_json(["-m", "benchmarks.side", side, name, *window], folder=Path(folder))
            for side in ("bare", "rlrun")
        }
    for quantity in SAME:
        if sides["bare"][quantity] != sides["rlrun"][quantity]:
            raise Failed(f"{name}: {quantity} differ: {sides['bare'][quantity]} and {sides['rlrun'][quantity]}")
    return sides


def summary(case: Case, rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return medians with their range, whether the bar is met, and the rounds themselves."""
    speeds = {
        side: spread([row[side]["env_steps"] / row[side]["seconds"] for row in rounds]) for side in ("bare", "rlrun")
    }
    ratios = {clock: spread([row["ratio"][clock] for row in rounds]) for clock in ("seconds", "processor_seconds")}
    return {
        "words": list(case.overrides),
        "window": [case.first, case.last],
        "env_steps_per_second": speeds,
        "ratio": ratios["seconds"],
        "ratio_of_processor_time": ratios["processor_seconds"],
        "bar": case.bar,
        "passed": ratios["seconds"]["median"] >= case.bar,
        "rounds": rounds,
    }


def spread(values: list[float]) -> dict[str, float]:
    """Return median, smallest and largest."""
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}

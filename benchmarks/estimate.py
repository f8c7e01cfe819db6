"""Estimates of `rlrun train --estimate` against the time that runs take.

Each run is estimated before and after it runs, because the machine may be busier at one time than at another. The
processor time of a run is estimated as well, by a probe that reads the clock of its process. That depends less on
other load.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from benchmarks.machine import load
from benchmarks.process import run, run_for_json
from rlrun.analysis.estimate import PROBE, estimate
from rlrun.analysis.estimate.cost import Cost
from rlrun.config.expansion import expand

BAR = 0.25  # by how much of the measured time an estimate may be off


class Case(NamedTuple):
    """The overrides of a run, or of a sweep and its number of workers."""

    overrides: tuple[str, ...]
    workers: int | None = None


CASES = {
    "dqn-cartpole": Case(("algorithm=dqn", "env=cartpole")),
    "ppo-cartpole": Case(("algorithm=ppo", "env=cartpole")),
    "sac-pendulum": Case(("algorithm=sac", "env=pendulum")),
    "sweep": Case(("algorithm=ppo,dqn", "env=cartpole", "seed=0,1", "stop.env_steps=25_000"), workers=2),
}


def measure(chosen: list[str] | None = None, *, seconds: float = PROBE, overrides: list[str] | None = None) -> Any:
    """Estimate and run each of some cases.

    seconds: of a probe; overrides: further ones for every case.
    """
    results = {}
    for name in chosen or CASES:
        case = CASES[name]._replace(overrides=(*CASES[name].overrides, *(overrides or [])))
        with TemporaryDirectory() as folder:
            results[name] = measured(case, Path(folder), seconds)
        print(f"{name}: {results[name]['ratio']:.2f} of {results[name]['seconds']} s", flush=True)
    return results


def measured(case: Case, folder: Path, seconds: float) -> dict[str, Any]:
    """Estimate a case, run it, and estimate it once more."""
    loads = [load()]
    before = estimated(case, folder, seconds)
    begun = time.perf_counter()
    options = ["--run-dir", "run"] if case.workers is None else ["-m", "--workers", str(case.workers)]
    used = run(["-m", "rlrun", "train", *options, *case.overrides, "logger=[]"], folder=folder).processor_seconds
    took = time.perf_counter() - begun
    after = estimated(case, folder, seconds)
    ratio = (before["seconds"] + after["seconds"]) / 2 / took
    sizes = sum(path.stat().st_size for kind in ("run", "sweeps") for path in (folder / kind).rglob("*"))
    result = {"words": case.overrides, "workers": case.workers, "seconds": round(took, 1), "ratio": round(ratio, 3)}
    result |= {"estimates": [before["seconds"], after["seconds"]], "bytes": [before["bytes"], sizes]}
    if case.workers is None:
        result["ratio_of_processor_time"] = round(in_processor_time(case, folder, seconds) / used, 3)
    return {**result, "load": [*loads, load()], "bar": BAR, "passed": abs(ratio - 1) <= BAR}


def estimated(case: Case, folder: Path, seconds: float) -> dict[str, Any]:
    """Return the estimate of a case, made in a separate process: seconds and bytes."""
    workers = ["--workers", str(case.workers or 1)]
    return run_for_json(["-m", "benchmarks.estimate", str(seconds), *workers, *case.overrides], folder=folder)


def in_processor_time(case: Case, folder: Path, seconds: float) -> float:
    """Return the estimated processor seconds of a run."""
    probed = run(["-m", "benchmarks.estimate", str(seconds), "--processor", *case.overrides], folder=folder)
    cost = Cost(**json.loads(probed.output.strip().splitlines()[-1]))
    return cost.seconds + probed.processor_seconds - cost.probed


def main(arguments: list[str]) -> int:
    """Print the estimate of a case, or the cost that a probe measured by the clock of its process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("seconds", type=float)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--processor", action="store_true")
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_intermixed_args(arguments)
    if args.processor:
        from rlrun.analysis.estimate.probe import measure as probe

        with TemporaryDirectory(dir=".") as folder:
            cost = probe(args.overrides, None, args.seconds, Path(folder) / "run", time.process_time)
        print(json.dumps(asdict(cost)))
        return 0
    cost_estimate = estimate(expand(args.overrides), workers=args.workers, seconds=args.seconds)
    print(json.dumps({"seconds": round(cost_estimate.seconds, 1), "bytes": cost_estimate.bytes}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

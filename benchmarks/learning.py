"""What runs learn: each claim over five seeds with one set of numbers, through the command."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import (
    claims,
    claims_of_games,
    claims_of_imitation,
    claims_of_latents,
    claims_of_memory,
    claims_of_models,
    claims_of_particles,
    claims_of_pixels,
    claims_of_symmetry,
)
from benchmarks.claims import Claim, fresh_return
from benchmarks.games import BESIDE
from benchmarks.process import Failed

CLAIMS = (
    claims.CLAIMS
    | claims_of_models.CLAIMS
    | claims_of_particles.CLAIMS
    | claims_of_pixels.CLAIMS
    | claims_of_latents.CLAIMS
    | claims_of_games.CLAIMS
    | claims_of_imitation.CLAIMS
    | claims_of_symmetry.CLAIMS
    | claims_of_memory.CLAIMS
)


def measure(
    names: list[str] | None = None,
    *,
    seeds: Iterable[int] = range(5),
    workers: int = 2,
    overrides: Iterable[str] = (),
    earlier: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return what each claim came to.

    Args:
        names: of claims; None = all.
        seeds: one run each.
        workers: runs at a time.
        overrides: further ones for every run, such as a small budget to try this file.
        earlier: results whose runs with other seeds and the same overrides are kept.
    """
    seeds, earlier = list(seeds), earlier or {}
    jobs = [(name, seed) for name in names or list(CLAIMS) for seed in seeds]
    with ThreadPoolExecutor(workers) as pool:
        results = list(pool.map(lambda job: one_run(*job, overrides=list(overrides)), jobs))
    by_name: dict[str, dict[int, Any]] = {}
    for name, _ in jobs:
        same = earlier.get(name, {}).get("words") == [*CLAIMS[name].overrides, *overrides]
        by_name[name] = {run["seed"]: run for run in earlier[name]["runs"]} if same else {}
    for (name, seed), result in zip(jobs, results, strict=True):
        by_name[name][seed] = result
    sorted_runs = {name: [runs[seed] for seed in sorted(runs)] for name, runs in by_name.items()}
    return {name: summary(CLAIMS[name], runs, extra=list(overrides)) for name, runs in sorted_runs.items()}


def one_run(name: str, seed: int, *, overrides: list[str]) -> dict[str, Any]:
    """Train with one seed; a run that fails does not hold, and stops no other."""
    claim, start = CLAIMS[name], time.perf_counter()
    record: dict[str, Any] = {"seed": seed, "value": None, "holds": False}
    with TemporaryDirectory() as folder:
        try:
            value = claim.measured([*claim.overrides, f"seed={seed}", *overrides], Path(folder))
            record.update(value=value, holds=claim.holds(value))
            if claim.measured is fresh_return:
                record["evaluations"] = evaluations(Path(folder) / "run" / "summary.json")
            if (beside := Path(folder) / BESIDE).exists():
                record["beside"] = json.loads(beside.read_text())
        except Failed as error:
            record["error"] = str(error).strip().splitlines()[-1]
    record["wall_seconds"] = round(time.perf_counter() - start, 1)
    shown = record.get("error") or f"{record['value']:.4g}"
    print(f"{name} seed {seed}: {shown} ({record['wall_seconds']} s)", flush=True)
    return record


def evaluations(path: Path) -> dict[str, float | None]:
    """Return the mean returns of the best and of the last of a run's own evaluations: a peak may be left again."""
    stats = json.loads(path.read_text())
    return {name: stats[key] and stats[key]["mean_return"] for name, key in (("best", "best"), ("last", "evaluation"))}


def summary(claim: Claim, runs: list[dict[str, Any]], *, extra: list[str]) -> dict[str, Any]:
    """Return the claim with its runs; with fewer seeds than five, the same number may miss the bar."""
    missed = sum(not record["holds"] for record in runs)
    return {
        "words": [*claim.overrides, *extra],
        "unit": claim.unit,
        "bar": claim.bar,
        "at_most": claim.at_most,
        "enough": f"{claim.enough} of 5",
        "held": f"{len(runs) - missed} of {len(runs)}",
        "passed": missed <= 5 - claim.enough and missed < len(runs),
        "runs": runs,
    }

"""SAC and TD3 on HalfCheetah next to those of stable-baselines3: the same numbers, the same fresh episodes."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import page
from benchmarks.process import run, run_for_json
from benchmarks.rivals.environments import REQUIREMENTS, interpreter
from benchmarks.side import numbers_of
from rlrun import config as configuration

RIVAL = "stable-baselines3"
MODULE = ["-m", "benchmarks.rivals.off_policy_stable_baselines3"]
CASES = {
    f"{name}-halfcheetah": (f"algorithm={name}", "env=halfcheetah", "stop.env_steps=50_000") for name in ("sac", "td3")
}
EPISODES, SEED = 20, 1_000  # of the fresh episodes, by the last policy at its best
SIDES = ("rlrun", "rival")


def measure(
    names: Iterable[str] = (), *, seeds: Iterable[int] = range(3), workers: int = 2, overrides: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the returns of both sides by case; runs of other seeds that were measured earlier stay.

    Args:
        names: of `CASES`; none = all.
        seeds: a run of each side each.
        workers: runs at a time.
        overrides: further ones, such as a small budget to try this file.
    """
    python, seeds = interpreter(RIVAL), list(seeds)
    return {name: _case(name, [*CASES[name], *overrides], seeds, workers, python) for name in names or CASES}


def _case(name: str, overrides: list[str], seeds: list[int], workers: int, python: Path) -> dict[str, Any]:
    earlier = page.load("halfcheetah").get(name, {})
    runs = {record["seed"]: record for record in earlier["runs"]} if earlier.get("words") == overrides else {}
    jobs = [(side, seed) for seed in seeds for side in SIDES]
    with ThreadPoolExecutor(workers) as pool:
        results = list(
            pool.map(
                lambda job: _ours(overrides, job[1]) if job[0] == "rlrun" else _theirs(overrides, *job[1:], python),
                jobs,
            )
        )
    for (side, seed), result in zip(jobs, results, strict=True):
        runs.setdefault(seed, {"seed": seed})[side] = result
        print(f"{name} seed {seed} {side}: {result['mean']:.1f} ({result['seconds']:.0f} s)", flush=True)
    ordered = [runs[seed] for seed in sorted(runs)]
    means = {side: statistics.mean(record[side]["mean"] for record in ordered) for side in SIDES}
    passed = means["rlrun"] >= means["rival"]
    return {"words": overrides, "requirement": REQUIREMENTS[RIVAL], "runs": ordered, "means": means, "passed": passed}


def _ours(overrides: list[str], seed: int) -> dict[str, Any]:
    with TemporaryDirectory() as place:
        run_dir = Path(place) / "run"
        begun = time.perf_counter()
        arguments = [*overrides, f"seed={seed}", "evaluation.every=0", "logger=[]", "--run-dir", str(run_dir)]
        run(["-m", "rlrun", "train", *arguments], folder=Path(place))
        seconds = time.perf_counter() - begun
        options = ["--checkpoint", "latest", "--episodes", str(EPISODES), "--seed", str(SEED), "--json"]
        result = run_for_json(["-m", "rlrun", "eval", str(run_dir), *options], folder=Path(place))
    return {"mean": statistics.mean(result["returns"]), "returns": result["returns"], "seconds": seconds}


def _theirs(overrides: list[str], seed: int, python: Path) -> dict[str, Any]:
    config = configuration.compose(overrides).config
    more = {"env": config.env.id, "budget": config.stop.env_steps, "episodes": EPISODES, "seed": SEED}
    numbers = json.dumps({**numbers_of(config), **more})
    algorithm = overrides[0].removeprefix("algorithm=")
    with TemporaryDirectory() as place:
        result = run_for_json([*MODULE, algorithm, numbers, str(seed)], folder=Path(place), python=python)
    return {"mean": statistics.mean(result["returns"]), **result}

"""A search against as many trials at random: what is best by each, over seeds that neither has seen."""

from __future__ import annotations

import json
import math
import random
import statistics
import time
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.machine import load
from benchmarks.process import run
from rlrun.rundir import RunDir
from rlrun.sweep.search import Optuna, Plan
from rlrun.sweep.search.study import Study
from rlrun.watching import progress

TRIALS, FRESH = 30, 8
SEEDS = 3  # a trial: one run of so short a budget says little of its values
SIDES = {
    "search": ("sweep.sampler=tpe", "sweep.pruner=median"),
    "random": ("sweep.sampler=random", "sweep.pruner=none"),
}
WORDS = (
    *("algorithm=dqn", "env=cartpole", "pair=null", "algorithm.hidden=[64]", "algorithm.batch_size=64"),
    *(
        "algorithm.target_rate=1.0",
        "algorithm.epsilon.steps=2_000",
        "algorithm.warmup_steps=500",
        "algorithm.updates_per_step=0.5",
    ),
    *("algorithm.lr=tag(log,interval(1e-5,1e-1))", "algorithm.target_every=tag(log,int(interval(1,2000)))"),
    *("stop.env_steps=6_000", "evaluation.every=500", "evaluation.episodes=5", "evaluation.max_steps=500"),
    *("checkpoint.every=0", "checkpoint.keep_best=false", "logger=[]", "log.every=0"),
)
# The algorithm's own values are no trial: they would be the same head start on both sides, but hide who finds them.
SWEEP = (
    *("+sweep=optuna", f"sweep.trials={TRIALS}", f"sweep.seeds={SEEDS}"),
    *(f"sweep.fresh_seeds={FRESH}", "sweep.start=false"),
)
QUADRATIC = ("x=tag(log,interval(1e-5,1e-1))", "n=int(interval(1,200))", "y=interval(-1,1)")
NOISE = 0.05
STUDIES = 20  # of the quadratic


def measure(seeds: Iterable[int], *, workers: int = 2, words: Iterable[str] = ()) -> dict[str, Any]:
    """Return both comparisons.

    Args:
        seeds: of the studies on CartPole, one search and one of trials at random each.
        workers: jobs side by side.
        words: further ones for every run, such as a small budget to try this file.
    """
    return {"cartpole": cartpole(seeds, workers=workers, words=words), "quadratic": quadratic(range(STUDIES))}


def cartpole(seeds: Iterable[int], *, workers: int, words: Iterable[str] = ()) -> dict[str, Any]:
    """Return what DQN comes to with the best learning rate and target period of each side."""
    words, studies = [*WORDS, *SWEEP, *words], []
    for seed in seeds:
        pair = {side: _one(side, seed, words, workers) for side in SIDES}
        studies.append({"seed": seed, "load": load(), **pair})
    return {"words": words, "sides": SIDES, "studies": studies, **verdict(studies)}


def verdict(studies: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the means of both sides, in how many studies the search was ahead, and whether it was on the whole."""
    means = {side: statistics.mean(study[side]["mean"] for study in studies) for side in SIDES}
    ahead = sum(study["search"]["mean"] > study["random"]["mean"] for study in studies)
    return {"means": means, "ahead": ahead, "passed": means["search"] > means["random"]}


def _one(side: str, seed: int, words: list[str], workers: int) -> dict[str, Any]:
    start = time.perf_counter()
    with TemporaryDirectory() as folder:
        given = [*words, *SIDES[side], f"sweep.seed={seed}", "--sweep-dir", "sweep", "--workers", str(workers)]
        run(["-m", "rlrun", "train", "-m", *given], folder=Path(folder))
        sweep = Path(folder) / "sweep"
        found = json.loads((sweep / "best.json").read_text())
        steps = sum(progress(RunDir(path).metrics).get("env_steps", 0) for path in (sweep / "jobs").iterdir())
    best = found["best"]
    return {
        "mean": best["mean"][0],
        "interval": best["interval"][0],
        "scores": best["scores"][0],
        "searched": best["searched"][0],
        "values": best["words"],
        "trials": found["trials"],
        "env_steps": steps,
        "seconds": time.perf_counter() - start,
    }


class _Plan(Plan):
    """A plan whose words are those of no config."""

    start = {}  # type: ignore[assignment]
    evaluations = None  # type: ignore[assignment]


def quadratic(seeds: Iterable[int]) -> dict[str, Any]:
    """Return what each side finds on a noisy quadratic of three numbers, the largest value of which is 0."""
    studies = []
    for seed in seeds:
        pair = {side: {"mean": _sought(sampler, seed)} for side, sampler in (("search", "tpe"), ("random", "random"))}
        studies.append({"seed": seed, **pair, "cmaes": {"mean": _sought("cmaes", seed)}})
    cmaes = statistics.mean(study["cmaes"]["mean"] for study in studies)
    found = verdict(studies)
    found["means"]["cmaes"] = cmaes
    return {"words": QUADRATIC, "noise": NOISE, "studies": studies, **found}


def _sought(sampler: str, seed: int) -> float:
    """Return the mean of the best of some trials over fresh draws of the noise."""
    plan = _Plan(QUADRATIC, Optuna(trials=TRIALS, sampler=sampler, seed=seed))
    drawn = random.Random(f"{sampler} {seed}")
    with TemporaryDirectory() as folder:
        study = Study(Path(folder) / "study.journal", plan)
        for _ in range(TRIALS):
            trial = study.ask()
            study.tell(trial.number, [_height(trial.values) + drawn.gauss(0, NOISE)], "complete")
        best = study.best()[0]
    return statistics.mean(_height(best.values) + drawn.gauss(0, NOISE) for _ in range(FRESH))


def _height(values: dict[str, Any]) -> float:
    return -((math.log10(values["x"]) + 3.2) ** 2) - ((values["n"] - 60) / 40) ** 2 - 4 * (values["y"] - 0.3) ** 2

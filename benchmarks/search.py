"""A search against as many trials at random: what is best by each, over seeds that neither has seen."""

from __future__ import annotations

import json
import math
import random
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks import page, surface
from benchmarks.machine import load
from benchmarks.process import run
from benchmarks.surface import Curves, Surface
from rlrun.runs.directory import RunDir
from rlrun.runs.progress import progress
from rlrun.sweep.search import Optuna, SearchPlan
from rlrun.sweep.search.study import Study

TRIALS, TOP, FRESH = 30, 3, 8
SEEDS = 2  # a trial: one run of so short a budget says little of its values
SIDES = {
    "search": ("sweep.sampler=tpe", "sweep.pruner=median"),
    "random": ("sweep.sampler=random", "sweep.pruner=none"),
}
VALUES = ("algorithm.lr=tag(log,interval(1e-5,1e-1))", "algorithm.target_every=tag(log,int(interval(1,2000)))")
OVERRIDES = (*surface.OVERRIDES, *VALUES)
# The algorithm's own values are no trial: they would help both sides alike, and hide which side finds them.
SWEEP = (
    *("+sweep=optuna", f"sweep.trials={TRIALS}", f"sweep.seeds={SEEDS}", f"sweep.top={TOP}"),
    *(f"sweep.fresh_seeds={FRESH}", "sweep.start=false"),
)
QUADRATIC = ("x=tag(log,interval(1e-5,1e-1))", "n=int(interval(1,200))", "y=interval(-1,1)")
NOISE = 0.05
PARTS = ("drawn", "cartpole", "quadratic")
STUDIES = 20  # of the quadratic
DRAWN = 200  # studies of runs that are drawn from those which were measured


def measure(
    seeds: Iterable[int], *, parts: Iterable[str] = (), workers: int = 2, overrides: Iterable[str] = ()
) -> dict[str, Any]:
    """Return comparisons by name.

    Args:
        parts: which of `PARTS`; none = all.
        seeds: of the studies of real runs on CartPole, one search and one of trials at random each.
        workers: jobs at a time.
        overrides: further ones for every run, such as a small budget to try this file.
    """
    overrides = tuple(overrides)
    measures: dict[str, Callable[[], dict[str, Any]]] = {
        "cartpole": lambda: cartpole(seeds, workers=workers, overrides=overrides),
        "drawn": lambda: drawn(
            surface.measure(workers=workers, overrides=(*surface.OVERRIDES, *overrides)), range(DRAWN)
        ),
        "quadratic": lambda: quadratic(range(STUDIES)),
    }
    return {name: measures[name]() for name in parts or PARTS}


def cartpole(seeds: Iterable[int], *, workers: int, overrides: Iterable[str] = ()) -> dict[str, Any]:
    """Return what DQN comes to with the best learning rate and target period of each side.

    Studies of other seeds that were measured earlier with the same overrides stay.
    """
    overrides = [*OVERRIDES, *SWEEP, *overrides]
    earlier = page.load("search").get("cartpole", {})
    studies = {study["seed"]: study for study in earlier["studies"]} if earlier.get("words") == overrides else {}
    for seed in seeds:
        studies[seed] = {"seed": seed, **{side: one(side, seed, overrides, workers) for side in SIDES}}
    ordered = [studies[seed] for seed in sorted(studies)]
    return {"words": overrides, "sides": SIDES, "studies": ordered, **verdict(ordered)}


def verdict(studies: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the means of both sides, in how many studies the search was ahead, and whether it was on the whole."""
    means = {side: statistics.mean(study[side]["mean"] for study in studies) for side in SIDES}
    ahead = sum(study["search"]["mean"] > study["random"]["mean"] for study in studies)
    return {"means": means, "ahead": ahead, "passed": means["search"] > means["random"]}


def one(side: str, seed: int, overrides: list[str], workers: int) -> dict[str, Any]:
    """Return the best values that one side of a study finds with real runs."""
    start, before = time.perf_counter(), load()
    with TemporaryDirectory() as folder:
        arguments = [*overrides, *SIDES[side], f"sweep.seed={seed}", "--sweep-dir", "sweep", "--workers", str(workers)]
        run(["-m", "rlrun", "train", "-m", *arguments], folder=Path(folder))
        sweep = Path(folder) / "sweep"
        result = json.loads((sweep / "best.json").read_text())
        steps = sum(progress(RunDir(path).metrics).get("env_steps", 0) for path in (sweep / "jobs").iterdir())
    best = result["best"]
    return {
        "mean": best["mean"][0],
        "interval": best["interval"][0],
        "scores": best["scores"][0],
        "searched": best["searched"][0],
        "values": best["words"],
        "trials": result["trials"],
        "env_steps": steps,
        "seconds": time.perf_counter() - start,
        "load": before,
    }


class _Plan(SearchPlan):
    """A plan whose overrides belong to no config."""

    start = {}  # type: ignore[assignment]
    evaluations = None  # type: ignore[assignment]


def drawn(curves: Curves, seeds: Iterable[int]) -> dict[str, Any]:
    """Return what each side finds in as many studies of runs drawn from those that were measured.

    `mean` is what the answer of a study, the best of its top by fresh runs, is expected to come to.
    """
    measured, studies = Surface(curves), []
    for seed in seeds:
        search = _drawn(measured, Optuna(trials=TRIALS, sampler="tpe", pruner="median", seed=seed), seed)
        at_random = _drawn(measured, Optuna(trials=TRIALS, sampler="random", pruner="none", seed=seed), seed)
        studies.append({"seed": seed, "search": search, "random": at_random})
    gains = [study["search"]["mean"] - study["random"]["mean"] for study in studies]
    error = statistics.stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else math.inf
    evaluations = {side: statistics.mean(study[side]["evaluations"] for study in studies) for side in SIDES}
    comparison = verdict(studies)
    return {
        "curves": curves,
        "best": measured.best,
        "seeds": SEEDS,
        "studies": len(studies),
        "evaluations": evaluations,
        "gain": statistics.mean(gains),
        "error": error,
        **comparison,
        "passed": statistics.mean(gains) > 2.0 * error,
    }


def _drawn(measured: Surface, settings: Optuna, seed: int) -> dict[str, float]:
    """Return what the answer of a study is expected to come to, and how many evaluations its trials made."""
    plan = _Plan(("lr=tag(log,interval(1e-5,1e-1))", "n=tag(log,int(interval(1,2000)))"), settings)
    length = measured.mean.shape[-1]
    plan.evaluations = length  # type: ignore[misc]
    chance = np.random.default_rng([seed, settings.sampler == "tpe"])
    evaluations = 0
    with TemporaryDirectory() as folder:
        study = Study(Path(folder) / "study.journal", plan)
        for _ in range(TRIALS):
            trial = study.ask()
            curve = np.mean([measured.drawn(*_values(trial), chance) for _ in range(SEEDS)], 0)
            come_to, state = np.cumsum(curve) / np.arange(1, length + 1), "complete"
            for step, value in enumerate(come_to, start=1):
                study.report(trial.number, step, float(value))
                evaluations += SEEDS
                if step < length and study.is_hopeless(trial.number):
                    state = "pruned"
                    break
            study.tell(trial.number, [float(come_to[-1])] if state == "complete" else None, state)
        top = study.best()[:TOP]
    runs = [np.mean([measured.drawn(*_values(trial), chance) for _ in range(FRESH)]) for trial in top]
    return {"mean": float(measured.expected(*_values(top[int(np.argmax(runs))])).mean()), "evaluations": evaluations}


def _values(trial: Any) -> tuple[float, float]:
    return trial.values["lr"], trial.values["n"]


def quadratic(seeds: Iterable[int]) -> dict[str, Any]:
    """Return what each side finds on a noisy quadratic of three numbers, the largest value of which is 0."""
    studies = []
    for seed in seeds:
        means = {side: {"mean": _sought(sampler, seed)} for side, sampler in (("search", "tpe"), ("random", "random"))}
        studies.append({"seed": seed, **means})
    return {"words": QUADRATIC, "noise": NOISE, "studies": studies, **verdict(studies)}


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

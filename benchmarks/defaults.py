"""Defaults on tasks that no preset tunes, next to the defaults of stable-baselines3.

Each seed is a job whose outcome is saved when it ends; a second call runs the missing jobs. Runs of rlrun are a sweep
under RLRUN_BENCH_CACHE, which a second call resumes.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import page
from benchmarks.machine import machine
from benchmarks.process import ROOT, Failed, run, run_for_json
from benchmarks.rivals.environments import REQUIREMENTS, cache, interpreter

RIVAL = "stable-baselines3"
MODULE = ["-m", "benchmarks.rivals.training.default_stable_baselines3"]
SIDES = (RIVAL, "rlrun")
POLICIES = ("best", "last")  # of a run: of its best evaluation, and at its end
EVALUATIONS, EPISODES = 20, 10  # a run, on both sides
FRESH, SEED = 20, 1_000  # episodes that evaluate a policy
SEEDS = 5  # of each side that a verdict needs
RANDOM = 100  # episodes of the random policy
BEHIND = -0.05  # mean over tasks of (ours - peer) / |peer - random| at least


@dataclass(frozen=True)
class Task:
    """An algorithm on an environment.

    overrides: further ones of rlrun; bar: return of the best policy; enough: seeds of five that must reach it, None =
    their mean must; fall: from a run's best evaluation to its last one at most; alone: no peer is measured.
    """

    algorithm: str
    env: str
    budget: int
    overrides: tuple[str, ...] = ()
    bar: float | None = None
    enough: int | None = None
    fall: float | None = None
    alone: bool = False

    def command(self) -> list[str]:
        """Return the overrides of a run of rlrun, without its seed."""
        every = self.budget // EVALUATIONS
        task = [f"algorithm={self.algorithm}", f"env.id={self.env}", "preset=null", *self.overrides]
        evaluation = [f"evaluation.every={every}", f"evaluation.episodes={EPISODES}"]
        return [*task, f"stop.env_steps={self.budget}", *evaluation, "logger=[]"]

    def job(self, seed: int) -> dict[str, Any]:
        """Return the job that the peer gets."""
        return {
            "algorithm": self.algorithm,
            "env": self.env,
            "budget": self.budget,
            "seed": seed,
            "every": self.budget // EVALUATIONS,
            "episodes": EPISODES,
            "fresh": FRESH,
            "fresh_seed": SEED,
        }


TASKS = {  # the cheap ones first
    "dqn-acrobot": Task("dqn", "Acrobot-v1", 100_000, bar=-100.0),
    "ppo-acrobot": Task("ppo", "Acrobot-v1", 100_000, bar=-100.0),
    "ppo-lunarlander": Task("ppo", "LunarLander-v3", 300_000, bar=140.0, enough=4),
    "sac-mountaincarcontinuous": Task(
        "sac", "MountainCarContinuous-v0", 50_000, ("+with=colored_noise",), bar=90.0, enough=4
    ),
    "sac-hopper": Task("sac", "Hopper-v5", 50_000),
    "ppo-lunarlander-1m": Task("ppo", "LunarLander-v3", 1_000_000, enough=3, fall=60.0, alone=True),
}


def measure(
    names: Iterable[str] = (),
    *,
    seeds: Iterable[int] = range(5),
    sides: Iterable[str] = SIDES,
    workers: int = 1,
    again: bool = False,
    tasks: dict[str, Task] = TASKS,
    folder: Path = page.RESULTS,
) -> dict[str, Any]:
    """Return the tasks with all runs so far; each run is saved once it is finished.

    Args:
        names: of tasks; none = all.
        seeds: a run of each side each.
        sides: that are measured now; runs of the other side stay.
        workers: runs of rlrun at a time; the peer's are one at a time.
        again: forget the sides' earlier runs of these tasks.
        tasks: the tasks by name.
        folder: of the results.
    """
    seeds, sides = list(seeds), list(sides)
    for name in names or tasks:
        task = tasks[name]
        for side in sides:
            if task.alone and side == RIVAL:
                continue
            if again:
                _save(name, task, side, [], folder)
                shutil.rmtree(_sweep(name), ignore_errors=True)
            finished = {entry["seed"] for entry in _runs(name, task, side, folder)}
            missing = [seed for seed in seeds if seed not in finished]
            if missing:
                if side == RIVAL:
                    _theirs(name, task, missing, folder)
                else:
                    _ours(name, task, missing, workers, folder)
    parts = page.load("defaults", folder=folder)
    return {name: summary(tasks[name], parts[name]) for name in names or tasks if name in parts}


def _theirs(name: str, task: Task, seeds: list[int], folder: Path) -> None:
    """Train the peer, a job at a time; the policy at random is a job, too."""
    python = interpreter(RIVAL)
    with TemporaryDirectory() as place:
        for seed in seeds:
            command = [*MODULE, json.dumps(task.job(seed))]
            outcome = run_for_json(command, folder=Path(place), python=python)
            _add(name, task, RIVAL, {"seed": seed, "command": ["python", *command], **outcome}, folder)
        if "random" not in page.load("defaults", folder=folder)[name]:
            job = json.dumps({**task.job(0), "algorithm": "random", "fresh": RANDOM})
            outcome = run_for_json([*MODULE, job], folder=Path(place), python=python)
            _save(name, task, "random", statistics.mean(outcome["returns"]), folder)


def _sweep(name: str) -> Path:
    return cache() / "defaults" / name


def _ours(name: str, task: Task, seeds: list[int], workers: int, folder: Path) -> None:
    """Train by a sweep, which resumes an earlier one; add the outcomes of its runs."""
    sweep, command = _sweep(name), task.command()
    sweep.parent.mkdir(parents=True, exist_ok=True)
    values = f"seed={','.join(map(str, seeds))}"
    options = ["--sweep-dir", str(sweep), "--workers", str(workers)]
    begun = time.perf_counter()
    try:
        run(["-m", "rlrun", "train", "-m", *command, values, *options], folder=sweep.parent)
    except Failed as error:
        print(f"{name}: {error}", flush=True)  # runs that did not fail count
    print(f"{name}: the sweep took {time.perf_counter() - begun:.0f} s", flush=True)
    for summary_file in sorted(sweep.glob("jobs/*/summary.json")):
        seed = json.loads((summary_file.parent / "manifest.json").read_text())["seed"]
        if seed in seeds:
            typed = ["rlrun", "train", *command, f"seed={seed}"]
            _add(name, task, "rlrun", {"seed": seed, "command": typed, **_evaluated(summary_file.parent)}, folder)


def _evaluated(run_dir: Path) -> dict[str, Any]:
    """Return the curve of a finished run, and the returns of fresh episodes by its best and its last policy."""
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    curve = [(row["env_steps"], row["evaluation/mean_return"]) for row in records if "evaluation/mean_return" in row]
    summary = json.loads((run_dir / "summary.json").read_text())
    returns = {}
    with TemporaryDirectory() as place:
        for policy, checkpoint in zip(POLICIES, ("best", "latest"), strict=True):
            options = ["--checkpoint", checkpoint, "--episodes", str(FRESH), "--seed", str(SEED), "--json"]
            outcome = run_for_json(["-m", "rlrun", "eval", str(run_dir), *options], folder=Path(place))
            returns[policy] = outcome["returns"]
    return {"curve": curve, "env_steps": summary["env_steps"], **returns, "commit": _commit()}


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _runs(name: str, task: Task, side: str, folder: Path) -> list[dict[str, Any]]:
    """Return the runs of a side so far, unless a run was requested otherwise than now."""
    part = page.load("defaults", folder=folder).get(name, {})
    return part.get(side, []) if part.get("overrides", {}).get(side) == _request(task, side) else []


def _request(task: Task, side: str) -> list[str]:
    return task.command() if side == "rlrun" else [REQUIREMENTS[RIVAL], json.dumps({**task.job(0), "seed": None})]


def _add(name: str, task: Task, side: str, outcome: dict[str, Any], folder: Path) -> None:
    outcome = {**outcome, **{key: machine()[key] for key in ("date", "processor")}}
    entries = [entry for entry in _runs(name, task, side, folder) if entry["seed"] != outcome["seed"]]
    _save(name, task, side, sorted([*entries, outcome], key=lambda entry: entry["seed"]), folder)
    means = ", ".join(f"{policy} {statistics.mean(outcome[policy]):.1f}" for policy in POLICIES)
    print(f"{name} seed {outcome['seed']} {side}: {means}", flush=True)


def _save(name: str, task: Task, side: str, value: Any, folder: Path) -> None:
    part = page.load("defaults", folder=folder).get(name, {})
    requests = part.get("overrides", {})
    if side in SIDES:
        requests = {**requests, side: _request(task, side)}
    part = {**part, "overrides": requests, side: value}
    page.save("defaults", {name: summary(task, part)}, folder=folder)


def summary(task: Task, part: dict[str, Any]) -> dict[str, Any]:
    """Return a task's runs with their means and with what of its bars is met; with missing runs they are not met."""
    means = {
        side: {policy: [statistics.mean(entry[policy]) for entry in part[side]] for policy in POLICIES}
        for side in SIDES
        if part.get(side)
    }
    ours = part.get("rlrun", [])
    reached = None
    if ours and task.bar is not None:
        reached = sum(value >= task.bar for value in means["rlrun"]["best"])
    if ours and task.fall is not None:
        reached = sum(max(value for _, value in entry["curve"]) - entry["curve"][-1][1] <= task.fall for entry in ours)
    verdict: dict[str, Any] = {"reached": reached, "enough": task.enough, "bar": task.bar, "fall": task.fall}
    verdict |= {"command": task.command(), "compared": {}}
    if len(means) == len(SIDES) and "random" in part:
        verdict["compared"] = {
            policy: compared(means["rlrun"][policy], means[RIVAL][policy], part["random"]) for policy in POLICIES
        }
    passed = reached is None
    if reached is not None and task.enough is not None:
        passed = reached >= task.enough
    elif reached is not None and task.bar is not None:
        passed = statistics.mean(means["rlrun"]["best"]) >= task.bar
    verdict["bar_met"] = passed
    passed &= all(gap["gain"] >= -2 * gap["error"] for gap in verdict["compared"].values())
    complete = len(ours) >= SEEDS and (task.alone or len(part.get(RIVAL, [])) >= SEEDS)
    return {**part, **verdict, "passed": complete and passed}


def compared(ours: list[float], theirs: list[float], random: float) -> dict[str, float]:
    """Return by how much our mean is above the peer's, the standard error of that, and its share."""
    gain = statistics.mean(ours) - statistics.mean(theirs)
    error = sum(statistics.variance(side) / len(side) for side in (ours, theirs) if len(side) > 1) ** 0.5
    return {"gain": gain, "error": error, "share": gain / abs(statistics.mean(theirs) - random)}

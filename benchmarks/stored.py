"""Learning from a stored memory: it is written, and learned from, by commands that a user could type.

Who writes it acts half of its steps at random and half as a trained SAC would. Returns are means of 20 episodes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from benchmarks.process import run, run_for_json

Fresh = Callable[[list[str], Path], float]  # overrides of a run and a folder -> mean return of fresh episodes

EXPERT = ("algorithm=sac", "env=pendulum", "stop.env_steps=10_000", "logger=[]")
HALF = (
    "+half={_target_: rlrun.collect.EpsilonGreedy, policy: '${networks.policy}', epsilon: 0.5, spaces: '${spaces}', "
    "seed: '${seeds.agent}', device: '${device}'}"
)
WRITING = (
    *("init.memory=null", HALF, "agent=${half}"),
    *("algorithm.warmup_steps=0", "algorithm.steps_per_update=1_000", "algorithm.lr=1.0e-9"),  # it stays as it is
    *("stop.env_steps=20_000", "evaluation.every=0"),
)
CLONE = ("algorithm=bc", "env=pendulum", "stop.updates=3_000")
FRESH = ("--episodes", "20", "--seed", "1000", "--json")


def written(overrides: list[str], folder: Path) -> tuple[str, float]:
    """Return the override of a stored memory, and the mean return of the policy that wrote it, on fresh episodes."""
    seed = [override for override in overrides if override.startswith("seed=")]
    expert, half, data = folder / "expert", folder / "half", folder / "half.zip"
    run(["-m", "rlrun", "train", *EXPERT, *seed, "--run-dir", str(expert)], folder=folder)
    begun = ["--from", f"{expert}@best", *WRITING, f"memory.export.path={data}", "--run-dir", str(half)]
    run(["-m", "rlrun", "train", *begun], folder=folder)
    shown = run_for_json(["-m", "rlrun", "eval", str(half), "--stochastic", *FRESH], folder=folder)
    return f"dataset={data}", float(shown["mean_return"])


def behind_behavior(fresh: Fresh) -> Fresh:
    """Return a measurement: the share of the return of who wrote the memory that who learns from it lacks."""

    def measured(overrides: list[str], folder: Path) -> float:
        data, shown = written(overrides, folder)
        return (shown - fresh([*overrides, data], folder)) / abs(shown)

    return measured


def above_clone(fresh: Fresh) -> Fresh:
    """Return a measurement: by how much a mean return is above that of cloning the same memory."""

    def measured(overrides: list[str], folder: Path) -> float:
        data, _ = written(overrides, folder)
        clone_dir = folder / "clone"
        clone_dir.mkdir()
        seed = [override for override in overrides if override.startswith("seed=")]
        return fresh([*overrides, data], folder) - fresh([*CLONE, *seed, data], clone_dir)

    return measured


def lost_online(overrides: list[str], folder: Path) -> float:
    """Return the share of the return at the end of offline learning that the worst evaluation after it lacks."""
    data, _ = written(overrides, folder)
    run(["-m", "rlrun", "train", *overrides, data, "logger=[]", "--run-dir", str(folder / "run")], folder=folder)
    return worst_loss(folder / "run" / "metrics.jsonl")


def worst_loss(metrics: Path) -> float:
    """Return that share from a run's metrics: of the last evaluation before the first environment step."""
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    returns = [(row["env_steps"], row["evaluation/mean_return"]) for row in rows if "evaluation/mean_return" in row]
    before = [value for steps, value in returns if steps == 0][-1]
    return (before - min(value for steps, value in returns if steps)) / abs(before)

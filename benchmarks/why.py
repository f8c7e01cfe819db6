"""Diagnoses by `rlrun why` of runs with a planted fault, and of healthy runs.

The thresholds were chosen by runs of seeds 10 to 12, of these and further cases; these seeds were then measured once.
"""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from benchmarks.machine import load
from benchmarks.process import run, run_for_json

ALWAYS = ("log.every=250", "logger=[]")  # short runs, so many records
SEEDS = 3  # 0, 1, 2, and again
BARS = {"sabotaged": 10, "healthy": 12}


class Case(NamedTuple):
    """The overrides of a run, and the planted cause; None = a healthy run."""

    overrides: str
    cause: str | None = None


def wrapped(name: str, **arguments: float) -> str:
    """Return the override that puts a wrapper of `benchmarks.sabotage` around an environment."""
    options = "".join(f", {key}: {value}" for key, value in arguments.items())
    return f"env.wrappers=[{{_target_: benchmarks.sabotage.{name}, _partial_: true{options}}}]"


ENDLESS = (
    "algorithm=sac env=pendulum env.id=null env.target=gymnasium.envs.classic_control.PendulumEnv stop.env_steps=8_000 "
    "algorithm.hidden=[64,64] algorithm.updates_per_step=0.25 evaluation.episodes=2 evaluation.max_steps=1_000"
)
SABOTAGED = {
    "rate x 100": Case(
        "algorithm=dqn env=cartpole algorithm.lr=0.1 stop.env_steps=6_000",
        "learning rate too high",
    ),
    "rate / 1000": Case(
        "algorithm=ppo env=cartpole algorithm.lr=1.0e-6 stop.env_steps=10_000",
        "learning rate too low",
    ),
    "reward x 0": Case(
        f"algorithm=sac env=pendulum stop.env_steps=1_500;{wrapped('Scaled', reward=0.0)}",
        "no reward",
    ),
    "reward x 1000": Case(
        f"algorithm=ppo env=cartpole stop.env_steps=10_000;{wrapped('Scaled', reward=1000.0)}",
        "scale of rewards",
    ),
    "target never updated": Case(
        "algorithm=dqn env=cartpole algorithm.tau=0.0 stop.env_steps=6_000",
        "target network stands still",
    ),
    "bounds too narrow": Case(
        f"algorithm=sac env=hitthemiddle stop.updates=1_200;{wrapped('Narrow', share=0.05)}",
        "actions at their bounds",
    ),
    "truncation as termination": Case(
        f"algorithm=ppo env=pendulum +with=reward_norm stop.env_steps=20_000;{wrapped('TimeLimitTerminates')}",
        "time limit reported as termination",
    ),
    "memory of 100": Case(
        "algorithm=dqn env=cartpole memory.length=100 stop.env_steps=4_000",
        "replay memory too small",
    ),
    "temperature 0": Case(
        "algorithm=sac env=pendulum algorithm.temperature.largest=1.0e-8 stop.env_steps=2_500",
        "weight of entropy",
    ),
    "no time limit": Case(ENDLESS, "episodes never end"),
    "warm-up of 6,000": Case(
        "algorithm=dqn env=cartpole algorithm.warmup_steps=6_000 stop.env_steps=4_000",
        "warm-up longer than the run",
    ),
    "gradients clipped to 1e-8": Case(
        "algorithm=ppo env=cartpole algorithm.max_grad_norm=1.0e-8 stop.env_steps=10_000",
        "gradients clipped to nothing",
    ),
}
HEALTHY = {
    "ppo-cartpole, learned": Case("algorithm=ppo env=cartpole"),
    "ppo-cartpole": Case("algorithm=ppo env=cartpole stop.env_steps=10_000"),
    "ppo-acrobot": Case("algorithm=ppo env=acrobot stop.env_steps=20_000"),
    "ppo-recall": Case("algorithm=ppo env=recall stop.env_steps=8_000"),
    "ppo-pendulum": Case("algorithm=ppo env=pendulum +with=[reward_norm,anneal] stop.env_steps=20_000"),
    "a2c-cartpole": Case("algorithm=a2c env=cartpole stop.env_steps=20_000"),
    "dqn-cartpole": Case("algorithm=dqn env=cartpole stop.env_steps=8_000"),
    "dqn-cartpole, just begun": Case("algorithm=dqn env=cartpole stop.env_steps=1_500"),
    "sac-pendulum": Case("algorithm=sac env=pendulum stop.env_steps=2_500"),
    "sac-hitthemiddle": Case("algorithm=sac env=hitthemiddle stop.updates=1_200"),
    "sac-mixedaction": Case("algorithm=sac env=mixedaction stop.env_steps=2_500"),
    "sac-cartpole": Case("algorithm=sac env=cartpole stop.env_steps=5_000"),
}
GROUPS = {"sabotaged": SABOTAGED, "healthy": HEALTHY}


def measure(chosen: list[str] | None = None) -> dict[str, Any]:
    """Train the runs of each group, or of some, and diagnose them."""
    return {name: summary(name, [one(*job) for job in seeded(GROUPS[name])]) for name in chosen or GROUPS}


def seeded(cases: dict[str, Case]) -> list[tuple[str, Case, int]]:
    """Return cases with the seed of each."""
    return [(name, case, index % SEEDS) for index, (name, case) in enumerate(cases.items())]


def one(name: str, case: Case, seed: int) -> dict[str, Any]:
    """Train a run and diagnose it."""
    overrides = overrides_of(case.overrides)
    with TemporaryDirectory() as folder:
        begun = time.perf_counter()
        run(["-m", "rlrun", "train", "--run-dir", "run", *overrides, f"seed={seed}", *ALWAYS], folder=Path(folder))
        seconds = time.perf_counter() - begun
        reply = run_for_json(["-m", "rlrun", "why", "run", "--json"], folder=Path(folder))
    causes = [finding["cause"] for finding in reply["findings"]]
    right = not causes if case.cause is None else causes[:1] == [case.cause]
    print(f"{name}, seed {seed}: {', '.join(causes) or 'nothing'} ({'right' if right else 'wrong'})", flush=True)
    row = {"name": name, "words": overrides, "seed": seed, "planted": case.cause, "said": causes, "right": right}
    row |= {"reasons": [finding["reason"] for finding in reply["findings"]]}
    return row | {"checks": reply["checks"], "unmade": len(reply["unmade"]), "seconds": round(seconds), "load": load()}


def overrides_of(text: str) -> list[str]:
    """Return the overrides of a case; the text after a semicolon is a single one."""
    plain, _, more = text.partition(";")
    return [*plain.split(), *([more] if more else [])]


def summary(group: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the runs of a group, how many diagnoses are right, and whether its bar is met."""
    right = sum(row["right"] for row in runs)
    return {"runs": runs, "right": right, "bar": BARS[group], "passed": right >= BARS[group]}

"""PPO beside that of stable-baselines3, with the same numbers: speed in turns, and the way to a solved CartPole."""

from __future__ import annotations

import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import rlrun
from benchmarks.machine import load
from benchmarks.process import run_for_json
from benchmarks.rivals.environments import REQUIREMENTS, interpreter
from benchmarks.side import CASES, numbers_of
from benchmarks.speed import spread
from rlrun import config as configuration

RIVAL, CASE = "stable-baselines3", "ppo-cartpole"
MODULE = ["-m", "benchmarks.rivals.ppo_stable_baselines3"]
BAR = 2.0  # times the rival's environment steps a second
RETURN, BUDGET, EVERY, EPISODES = 475.0, 100_000, 2_560, 20


def measure(*, rounds: int = 5, seeds: range = range(5)) -> dict[str, Any]:
    """Return speeds, and seconds and environment steps to a mean return of 475 in 20 greedy episodes."""
    python = interpreter(RIVAL)
    return {"speed": _speed(python, rounds), "way": _way(python, seeds)}


def _speed(python: Path, rounds: int) -> dict[str, Any]:
    case, found = CASES[CASE], []
    window = [str(case.first), str(case.last)]
    for number in range(rounds):
        before = load()
        with TemporaryDirectory() as place:
            rival = run_for_json([*MODULE, _numbers(), "speed", *window], folder=Path(place), python=python)
            ours = run_for_json(["-m", "benchmarks.side", "rlrun", CASE, *window], folder=Path(place))
        speeds = {side: one["env_steps"] / one["seconds"] for side, one in (("rlrun", ours), ("rival", rival))}
        found.append({"load": before, "ratio": speeds["rlrun"] / speeds["rival"], **speeds, "sides": [ours, rival]})
        print(f"{CASE} round {number + 1}: {found[-1]['ratio']:.2f} times {RIVAL} (load {before})", flush=True)
    ratio = spread([one["ratio"] for one in found])
    sides = {side: spread([one[side] for one in found]) for side in ("rlrun", "rival")}
    passed = ratio["median"] >= BAR
    return {"requirement": REQUIREMENTS[RIVAL], **sides, "ratio": ratio, "bar": BAR, "passed": passed, "rounds": found}


def _way(python: Path, seeds: range) -> dict[str, Any]:
    """Let both sides train until an evaluation reaches the return, seed by seed."""
    runs = []
    for seed in seeds:
        with TemporaryDirectory() as place:
            begun = time.perf_counter()
            words = [*CASES[CASE].words, f"seed={seed}", f"stop.env_steps={BUDGET}", f"stop.mean_return={RETURN:.0f}"]
            words += [f"evaluation.every={EVERY}", f"evaluation.episodes={EPISODES}", "logger=[]"]
            summary = rlrun.train(words, run_dir=Path(place) / "run").summary
            seconds = time.perf_counter() - begun
            rival = run_for_json(
                [*MODULE, _numbers(), "learn", str(BUDGET), str(seed)], folder=Path(place), python=python
            )
        ours = {"seconds": seconds, "env_steps": summary["env_steps"]}
        ours["reached"] = summary["env_steps"] < BUDGET
        runs.append({"seed": seed, "rlrun": ours, "rival": rival})
        print(f"seed {seed}: {ours} {rival}", flush=True)
    return {"return": RETURN, "budget": BUDGET, "runs": runs}


def _numbers() -> str:
    config = configuration.compose(list(CASES[CASE].words)).config
    more = {"env": config.env.id, "return": RETURN, "every": EVERY, "episodes": EPISODES}
    return json.dumps({**numbers_of(config), **more})

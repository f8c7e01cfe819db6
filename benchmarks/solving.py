"""From the command to its end: CartPole solved, next to stable-baselines3 with its own tuned settings; the first step.

Whole processes are timed, imports and all.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.machine import load
from benchmarks.process import run, run_for_json
from benchmarks.rivals.environments import REQUIREMENTS, interpreter
from benchmarks.speed import spread

RETURN, EVERY, EPISODES = 475.0, 2_560, 20  # of greedy episodes; the same on both sides
BUDGETS = {"ppo": 100_000, "dqn": 50_000}  # those of the tuned settings
BAR = 0.5  # times the rival's seconds at most
FIRST_BAR = 0.6
RIVAL, HYDRAS = "stable-baselines3", "sheeprl"  # the latter composes its configs by Hydra, too
BEGIN = "benchmarks.rivals.training.begin"
QUICK = ("env.num_envs=1", "env.sync_env=True", "env.capture_video=False", "fabric.accelerator=cpu", "fabric.devices=1")
COMMANDS = {
    "rlrun": ("rlrun", "train", "algorithm=sac", "env=pendulum"),
    HYDRAS: ("sheeprl", "exp=sac", "env.id=Pendulum-v1", *QUICK),
}


def solve(algorithm: str, *, seeds: Iterable[int]) -> dict[str, Any]:
    """Return seconds and environment steps of both sides to the return, by seed.

    A side that does not reach it counts with all its time; rlrun is to reach it as often as the rival.
    """
    python, runs = interpreter(RIVAL), []
    for seed in seeds:
        before = load()
        sides = {"rlrun": _ours(algorithm, seed), RIVAL: _theirs(algorithm, seed, python)}
        runs.append({"seed": seed, "load": before, "sides": sides})
        print(f"{algorithm} seed {seed}: {_warned(sides)} (load {before})", flush=True)
    seconds = {side: [row["sides"][side]["seconds"] for row in runs] for side in ("rlrun", RIVAL)}
    reached = {side: sum(row["sides"][side]["reached"] for row in runs) for side in seconds}
    ratio = statistics.median(seconds["rlrun"]) / statistics.median(seconds[RIVAL])
    return {
        "algorithm": algorithm,
        "requirement": REQUIREMENTS[RIVAL],
        "return": RETURN,
        "budget": BUDGETS[algorithm],
        "seconds": {side: spread(values) for side, values in seconds.items()},
        "ratio": ratio,
        "bar": BAR,
        "passed": ratio <= BAR and reached["rlrun"] >= reached[RIVAL],
        "runs": runs,
    }


def _ours(algorithm: str, seed: int) -> dict[str, Any]:
    stop = [f"stop.env_steps={BUDGETS[algorithm]}", f"stop.mean_return={RETURN:.0f}"]
    overrides = [f"algorithm={algorithm}", "env=cartpole", f"seed={seed}", *stop]
    overrides += [f"evaluation.every={EVERY}", f"evaluation.episodes={EPISODES}", "logger=[]", "--run-dir", "run"]
    with TemporaryDirectory() as place:
        begun = time.perf_counter()
        run(["-m", "rlrun", "train", *overrides], folder=Path(place))
        seconds = time.perf_counter() - begun
        summary = json.loads((Path(place) / "run" / "summary.json").read_text())
    reached = summary["evaluation"] is not None and summary["evaluation"]["mean_return"] >= RETURN
    return {"seconds": seconds, "env_steps": summary["env_steps"], "reached": reached}


def _theirs(algorithm: str, seed: int, python: Path) -> dict[str, Any]:
    task = {"algorithm": algorithm, "seed": seed, "budget": BUDGETS[algorithm]}
    task |= {"return": RETURN, "every": EVERY, "episodes": EPISODES}
    arguments = ["-m", "benchmarks.rivals.training.tuned_stable_baselines3", json.dumps(task)]
    with TemporaryDirectory() as place:
        begun = time.perf_counter()
        result = run_for_json(arguments, folder=Path(place), python=python)
        return {"seconds": time.perf_counter() - begun, **result}


def begin(*, rounds: int) -> dict[str, Any]:
    """Return seconds from the command to the first step of its environment, of both sides."""
    theirs, rows = interpreter(HYDRAS), []
    for number in range(rounds):
        before = load()
        sides = {"rlrun": first_step(COMMANDS["rlrun"]), HYDRAS: first_step(COMMANDS[HYDRAS], python=theirs)}
        rows.append({"load": before, **sides, "ratio": sides["rlrun"] / sides[HYDRAS]})
        print(f"first step round {number + 1}: {rows[-1]['ratio']:.2f} of {HYDRAS}'s time (load {before})", flush=True)
    figures = {key: spread([row[key] for row in rows]) for key in ("rlrun", HYDRAS, "ratio")}
    passed = figures["ratio"]["median"] <= FIRST_BAR
    commands = {side: list(command) for side, command in COMMANDS.items()}
    return {**figures, "commands": commands, "bar": FIRST_BAR, "passed": passed, "rounds": rows}


def first_step(command: Iterable[str], **options: Any) -> float:
    """Return seconds from the start of a process to the first step that it takes in a Pendulum."""
    with TemporaryDirectory() as place:
        arguments = ["-m", BEGIN, str(time.time()), "Pendulum-v1", *command]
        return float(run_for_json(arguments, folder=Path(place), **options)["seconds"])


def _warned(sides: dict[str, dict[str, Any]]) -> str:
    ends = {side: "" if result["reached"] else ", not reached" for side, result in sides.items()}
    return ", ".join(f"{side} {result['seconds']:.1f} s{ends[side]}" for side, result in sides.items())

"""Runs beside those of other libraries: the same work and numbers, processes in turn, ratios within a round."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from benchmarks.machine import load
from benchmarks.process import Failed, run, run_for_json
from benchmarks.rivals.environments import REQUIREMENTS, interpreter
from benchmarks.side import GREEDY, QUIET, numbers_of
from benchmarks.speed import spread
from rlrun import config as configuration

Sides = dict[str, dict[str, Any]]
Absent = dict[str, str]  # peer -> why


class Case(NamedTuple):
    """A run to measure: its words, the window in environment steps, and what it is held to."""

    words: tuple[str, ...]
    first: int
    last: int
    bar: float  # times the environment steps a second of stable-baselines3


ZOO = (  # what rl-zoo3 found for DQN on CartPole; its target is copied every 10 env steps, which are 5 updates
    *("algorithm.hidden=[256,256]", "algorithm.batch_size=64", "algorithm.updates_per_step=0.5"),
    *("algorithm.lr=2.3e-3", "algorithm.double=false", "algorithm.n_step=1", "algorithm.epsilon.last=0.04"),
    *("algorithm.target_rate=1.0", "algorithm.target_every=5", "pair=null", GREEDY),
)
SLACK = 0.02  # in the count of steps: native lanes take one to begin an episode, which rlrun does not count
WIDE = ("pair=null", "memory.length=1_000_000")
CASES = {
    "sac-pendulum": Case(("algorithm=sac", "env=pendulum", *WIDE), 1_200, 2_700, 1.9),
    "sac-halfcheetah": Case(("algorithm=sac", "env=halfcheetah", *WIDE), 1_200, 2_700, 1.9),
    "td3-pendulum": Case(("algorithm=td3", "env=pendulum", *WIDE), 1_200, 3_200, 1.7),
    "dqn-cartpole": Case(("algorithm=dqn", "env=cartpole", *ZOO), 2_560, 28_160, 2.2),
    "ppo-cartpole": Case(("algorithm=ppo", "env=cartpole"), 2_560, 43_520, 2.5),
    "ppo-cartpole-native": Case(("algorithm=ppo", "env=cartpole", "env.vectorization=native"), 2_560, 64_000, 4.0),
    "ppo-pendulum": Case(("algorithm=ppo", "env=pendulum"), 2_048, 32_768, 1.0),
    "a2c-cartpole": Case(("algorithm=a2c", "env=cartpole"), 1_280, 33_280, 2.0),
}


class Peer(NamedTuple):
    """Who is measured beside rlrun, by a module that is told the same numbers."""

    module: str
    algorithms: tuple[str, ...]
    installed: str | None = None  # its environment; null = this one
    sooner: float | None = None  # share of its time to the first step that rlrun may take; null = any


HELD = "stable-baselines3"  # whom a case's bar is about; rlrun has to be faster than every other
PEERS = {
    HELD: Peer("peer_stable_baselines3", ("sac", "td3", "dqn", "ppo", "a2c"), HELD),
    "cleanrl-style": Peer("peer_plain", ("sac", "td3", "dqn", "ppo")),
    "sheeprl": Peer("peer_sheeprl", ("sac", "ppo"), "sheeprl", 0.6),  # composed by Hydra, too
    "tianshou": Peer("peer_tianshou", ("sac", "ppo"), "tianshou"),
    "torchrl": Peer("peer_torchrl", ("sac", "ppo"), "torchrl"),
}


def measure(names: Iterable[str] = (), *, rivals: Iterable[str] | None = None, rounds: int = 5) -> dict[str, Any]:
    """Return what every side of each case comes to.

    Args:
        names: of `CASES`; none = all.
        rivals: of `PEERS`; null = all.
    """
    pythons, absent = {}, {}
    for name in PEERS if rivals is None else rivals:
        installed = PEERS[name].installed
        try:
            pythons[name] = interpreter(installed) if installed else Path(sys.executable)
        except Failed as failure:
            absent[name] = str(failure)
    return {name: measure_case(name, CASES[name], pythons, absent, rounds=rounds) for name in names or CASES}


def measure_case(name: str, case: Case, pythons: dict[str, Path], absent: Absent, *, rounds: int) -> dict[str, Any]:
    """Let all sides run in turn, and compare them round by round."""
    algorithm = algorithm_of(case)
    taking = {peer: python for peer, python in pythons.items() if algorithm in PEERS[peer].algorithms}
    absent, found = dict(absent), []
    for number in range(rounds):
        before, sides = load(), {"rlrun": ours(case)}
        for peer in [peer for peer in taking if peer not in absent]:
            try:
                sides[peer] = theirs(peer, taking[peer], case)
            except Failed as failure:
                absent[peer] = str(failure).strip().splitlines()[-1]
        found.append({"load": before, "sides": sides})
        ratios = {peer: f"{speed(sides['rlrun']) / speed(side):.2f}" for peer, side in sides.items()}
        print(f"{name} round {number + 1}: {ratios} (load {before})", flush=True)
    return summary(case, found, absent)


def algorithm_of(case: Case) -> str:
    """Return the algorithm of a case."""
    return case.words[0].removeprefix("algorithm=")


def ours(case: Case) -> dict[str, Any]:
    """Run the command as a user does, with a probe."""
    with TemporaryDirectory() as place:
        note, env = Path(place) / "found.json", configuration.compose(list(case.words)).config.env.id
        probe = f"_target_:benchmarks.probe.Told,first:{case.first},last:{case.last},path:{note},env:{env}"
        words = [*case.words, *QUIET, f"stop.env_steps={10 * case.last}", "--run-dir", str(Path(place) / "run")]
        begun = f"+callbacks.probe={{{probe},begun:{time.time()}}}"
        run(["-m", "rlrun", "train", *words, begun], folder=Path(place))
        found: dict[str, Any] = json.loads(note.read_text())
    return found


def theirs(peer: str, python: Path, case: Case) -> dict[str, Any]:
    """Run a peer with the numbers that the words of the case compose to."""
    config = configuration.compose(list(case.words)).config
    window = {"env": config.env.id, "first": case.first, "last": case.last}
    numbers = json.dumps({**numbers_of(config), **window})
    module = f"benchmarks.rivals.{PEERS[peer].module}"
    with TemporaryDirectory() as place:
        words = ["-m", module, algorithm_of(case), numbers, str(time.time())]
        return run_for_json(words, folder=Path(place), python=python)


def speed(side: dict[str, Any]) -> float:
    """Return environment steps a second in the window."""
    return float(side["env_steps"] / side["seconds"])


def processor_seconds(side: dict[str, Any]) -> float:
    """Return what an environment step took of the processor in the window, learning included."""
    return float(side["processor_seconds"] / side["env_steps"])


def summary(case: Case, rounds: list[dict[str, Any]], absent: Absent) -> dict[str, Any]:
    """Return medians with their range, who was faster, whether the bars are met, and the rounds themselves."""
    every = rounds[-1]["sides"]  # who failed in a round is not in the last
    sides = {side: figures([one["sides"][side] for one in rounds]) for side in every}
    ratios: dict[str, Any] = {}
    for peer in (side for side in every if side != "rlrun"):
        pairs = [(one["sides"]["rlrun"], one["sides"][peer]) for one in rounds]
        ratios[peer] = {
            "speed": spread([speed(mine) / speed(other) for mine, other in pairs]),
            "processor_seconds": spread([processor_seconds(other) / processor_seconds(mine) for mine, other in pairs]),
            "first_step": spread([mine["first_step"] / other["first_step"] for mine, other in pairs]),
            "same_work": all(same_work(mine, other) for mine, other in pairs),
        }
    bars = {peer: case.bar if peer == HELD else 1.0 for peer in ratios}
    missed = [peer for peer, bar in bars.items() if ratios[peer]["speed"]["median"] < bar]
    starts = {peer: bar for peer in ratios if (bar := PEERS[peer].sooner)}
    late = [peer for peer, bar in starts.items() if ratios[peer]["first_step"]["median"] > bar]
    unequal = [peer for peer, ratio in ratios.items() if ratio["same_work"] is False]
    return {
        "words": list(case.words),
        "window": [case.first, case.last],
        "versions": {peer: REQUIREMENTS[installed] for peer in ratios if (installed := PEERS[peer].installed)},
        "sides": sides,
        "ratio": ratios,
        "bars": bars,
        "missed": missed,
        "start_bars": starts,
        "late": late,
        "absent": absent,
        "passed": not (missed or late or unequal),
        "rounds": rounds,
    }


def figures(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what one side came to over the rounds."""
    return {
        "env_steps_per_second": spread([speed(one) for one in runs]),
        "processor_seconds": spread([1_000 * processor_seconds(one) for one in runs]),
        "first_step": spread([one["first_step"] for one in runs]),
        "peak_megabytes": spread([one["peak_kilobytes"] / 1024 for one in runs]),
        "updates": runs[-1]["updates"],
        "parameters": runs[-1]["parameters"],
    }


def same_work(mine: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether a parameter took as many steps of its optimiser for each environment step on both sides."""
    shares = [one["updates"] / one["env_steps"] for one in (mine, other)]
    return abs(shares[0] / shares[1] - 1.0) < SLACK

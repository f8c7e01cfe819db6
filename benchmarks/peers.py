"""Training at steady state next to other libraries', on the same work: processes take turns, ratios within a round.

Every side runs in a separate process, a peer in its own environment, and is measured alike
(`rivals/training/meter.py`): environment steps a second, seconds to the first of them, peak memory, optimizer steps.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from benchmarks import solving
from benchmarks.machine import load
from benchmarks.process import Failed, run_for_json
from benchmarks.rivals.environments import interpreter
from benchmarks.rivals.training.work import Work
from benchmarks.side import GREEDY, QUIET, numbers_of
from benchmarks.speed import spread
from rlrun import config as configuration

RLRUN, BARE, SB3, CLEANRL, SBX = "rlrun", "bare loop", "stable-baselines3", "cleanrl", "sbx"
OWN_LOOP = "loop of rlrun's parts"
NATIVE = "rlrun, native envs"
LOW = "rlrun, bf16"
COMPILED = ", compiled"  # suffix of a side whose updates are compiled
VARIANTS = {NATIVE: ("env.vectorization=native",), LOW: ("precision=bf16",), RLRUN: ()}  # rlrun with further overrides
VARIANTS |= {side + COMPILED: (*overrides, "compile=true") for side, overrides in VARIANTS.items()}
PEERS = (OWN_LOOP, BARE, SB3, CLEANRL, SBX, "sheeprl", "tianshou", "torchrl", f"torchrl{COMPILED}")
# these run in this environment
OURS = {
    **dict.fromkeys(VARIANTS, "rlrun"),
    OWN_LOOP: "own_loop",
    BARE: "plain",
    CLEANRL: "cleanrl",
}
LACKS = {  # by peer
    "sheeprl": {"dqn": "has no DQN", "td3": "has no TD3"},
    SBX: {"a2c": "has no A2C"},
    BARE: dict.fromkeys(("td3", "a2c"), "there is no such loop"),
}
NOT_ASKED = "not asked for"
SLACK = 0.01  # of updates: a window may end within a cycle


class Bar(NamedTuple):
    """rlrun, or a variant of it, is at least so many times as fast as a peer."""

    peer: str
    least: float
    side: str = RLRUN


class Case(NamedTuple):
    """A run to measure."""

    overrides: tuple[str, ...]
    first: int  # environment steps of the window
    last: int
    bars: tuple[Bar, ...]
    variants: tuple[str, ...] = ()

    @property
    def algorithm(self) -> str:
        """Name of what learns."""
        return self.overrides[0].removeprefix("algorithm=")

    def bars_of(self, sides: Iterable[str]) -> list[Bar]:
        """Return the bars of those sides: rlrun has to be faster than every peer that has the algorithm."""
        covered = {OWN_LOOP, BARE, *(bar.peer for bar in self.bars)}
        peers = [side for side in sides if side in PEERS and self.algorithm not in LACKS.get(side, {})]
        return [*self.bars, *(Bar(peer, 1.0) for peer in peers if peer not in covered)]

    def work(self, side: str) -> dict[str, Any]:
        """Return the job of a side; the same numbers for all."""
        overrides = [*self.overrides, *VARIANTS.get(side, ()), *QUIET]
        config = configuration.compose(overrides).config
        return Work(
            algorithm=self.algorithm,
            env=config.env.id,
            overrides=overrides,
            numbers=numbers_of(config),
            first=self.first,
            last=self.last,
            compiled=side.endswith(COMPILED),
            begun=time.time(),
        )._asdict()


ZOO_DQN = (  # the settings that stable-baselines3's zoo tuned
    *("algorithm.hidden=[256,256]", "algorithm.batch_size=64", "algorithm.lr=2.3e-3", "algorithm.updates_per_step=0.5"),
    *("algorithm.n_step=1", "algorithm.double=false", "algorithm.warmup_steps=1_000", "memory.length=100_000"),
    *("algorithm.tau=1", "algorithm.target_every=128", "algorithm.epsilon.last=0.04", GREEDY),
    "algorithm.huber=1.0",  # its loss
    "algorithm.collect_steps=256",  # as its `train_freq`; the same for tianshou and torchrl
)
FUSED = RLRUN + COMPILED
SOFT = (Bar(OWN_LOOP, 0.97), Bar(SB3, 1.9), Bar(SB3, 2.2, LOW + COMPILED))
SLOWER_SBX = Bar(SBX, 1.0, FUSED)
SIDES = (LOW, FUSED, LOW + COMPILED)
CASES = {
    "sac-pendulum": Case(("algorithm=sac", "env=pendulum", "preset=null"), 1_100, 1_700, (*SOFT, SLOWER_SBX), SIDES),
    "sac-halfcheetah": Case(("algorithm=sac", "env=halfcheetah", "preset=null"), 1_100, 1_700, SOFT, SIDES),
    "dqn-cartpole": Case(
        ("algorithm=dqn", "env=cartpole", "preset=null", *ZOO_DQN),
        2_048,
        12_288,
        (Bar(SB3, 2.2, FUSED), Bar(SBX, 0.75, FUSED)),
        (FUSED,),
    ),
    "ppo-cartpole": Case(
        *(("algorithm=ppo", "env=cartpole"), 2_560, 43_520),
        (Bar(SB3, 2.5), Bar(SB3, 4.0, NATIVE + COMPILED), Bar(SBX, 1.9, FUSED)),
        (NATIVE, FUSED, NATIVE + COMPILED),
    ),
    "ppo-pendulum": Case(("algorithm=ppo", "env=pendulum"), 4_096, 24_576, (), (FUSED,)),
    "a2c-cartpole": Case(("algorithm=a2c", "env=cartpole"), 2_560, 53_760, (Bar(SB3, 2.0),), (FUSED,)),
    "td3-pendulum": Case(
        ("algorithm=td3", "env=pendulum", "preset=null"), 1_100, 2_100, (Bar(SB3, 1.7), SLOWER_SBX), (FUSED,)
    ),
}
SOLVED = {"solve-ppo-cartpole": "ppo", "solve-dqn-cartpole": "dqn"}
PARTS = (*CASES, *SOLVED, "begin")


def measure(names: list[str] | None = None, *, peers: list[str] | None = None, rounds: int = 5) -> dict[str, Any]:
    """Return the figures of all sides in each part.

    names: of PARTS; None or [] for all.
    peers: which of them take part in the cases; None or [] for all.
    rounds: of each case; seeds of those that are solved.
    """
    results = {}
    for name in names or PARTS:
        if name in CASES:
            results[name] = measure_case(name, CASES[name], peers=peers or list(PEERS), rounds=rounds)
        elif name in SOLVED:
            results[name] = solving.solve(SOLVED[name], seeds=range(rounds))
        else:
            results[name] = solving.begin(rounds=rounds)
    return results


def measure_case(name: str, case: Case, *, peers: list[str], rounds: int) -> dict[str, Any]:
    """Run all sides, one after the other; a side that fails once is left out after that, with the reason."""
    absent = {peer: NOT_ASKED for peer in PEERS if peer not in peers}
    absent |= {peer: LACKS[peer][case.algorithm] for peer in peers if case.algorithm in LACKS.get(peer, {})}
    sides = [RLRUN, *case.variants, *(peer for peer in peers if peer not in absent)]
    records: list[dict[str, Any]] = []
    for number in range(rounds):
        before, turns = load(), {}
        at = number % len(sides)  # no side always runs after the same one
        for side in (*sides[at:], *sides[:at]):
            try:
                turns[side] = turn(case, side)
            except Failed as failure:
                if side == RLRUN:
                    raise
                absent[side] = " ".join(str(failure).split())[-300:]
        for side, why in other_work(turns).items():
            absent[side] = why
        sides = [side for side in sides if side not in absent]
        records.append({"load": before, "sides": {side: turns[side] for side in sides}})
        print(f"{name} round {number + 1}: {_shown(records[-1]['sides'])} (load {before})", flush=True)
    return summary(case, records, absent)


def turn(case: Case, side: str) -> dict[str, Any]:
    """Run a side once.

    Raises:
        Failed: it could not be installed, or did not come to the end of the window.
    """
    library = side.removesuffix(COMPILED)
    module = OURS.get(side) or library.replace("-", "_")
    python = Path(sys.executable) if side in OURS else interpreter(library)
    with TemporaryDirectory() as place:
        arguments = ["-m", "benchmarks.rivals.training.turn", module, json.dumps(case.work(side))]
        result = run_for_json(arguments, folder=Path(place), python=python)
    return {**result, "speed": result["env_steps"] / result["seconds"]}


def other_work(turns: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return, by side, that it updated its parameters more or less often than rlrun a step of the environment.

    Sides without an optimizer of torch are not compared, because nothing counts their updates.
    """
    rates = {side: result["updates"] / result["env_steps"] for side, result in turns.items() if result["parameters"]}
    return {
        side: f"{count:.4g} updates an environment step, not {rates[RLRUN]:.4g}"
        for side, count in rates.items()
        if RLRUN in rates and abs(count / rates[RLRUN] - 1) > SLACK
    }


def summary(case: Case, rounds: list[dict[str, Any]], absent: dict[str, str]) -> dict[str, Any]:
    """Return medians with their range, ratios to every remaining side, and which bars are met.

    A bar against a side that should have been measured and was not is missed.
    """
    present = list(rounds[-1]["sides"])
    ours = [side for side in present if OURS.get(side) == RLRUN]
    ratios = {
        side: {
            peer: spread([record["sides"][side]["speed"] / record["sides"][peer]["speed"] for record in rounds])
            for peer in present
            if peer not in ours
        }
        for side in ours
    }
    bars = []
    for bar in case.bars_of([*present, *absent]):
        if absent.get(bar.peer) != NOT_ASKED:
            reached = ratios.get(bar.side, {}).get(bar.peer)
            bars.append({**bar._asdict(), "passed": reached is not None and reached["median"] >= bar.least})
    return {
        "words": list(case.overrides),
        "window": [case.first, case.last],
        "sides": {side: _about([record["sides"][side] for record in rounds]) for side in present},
        "ratio": ratios,
        "bars": bars,
        "absent": absent,
        "load": [record["load"] for record in rounds],
        "passed": all(bar["passed"] for bar in bars),
        "rounds": rounds,
    }


def _about(turns: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of a side; what must be the same in every round once."""
    spreads = {key: spread([result[key] for result in turns]) for key in ("speed", "first_step", "megabytes")}
    return {**spreads, **{key: turns[-1][key] for key in ("steps_of_optimizers", "parameters", "versions")}}


def _shown(sides: dict[str, dict[str, Any]]) -> str:
    return ", ".join(f"{side} {result['speed']:,.0f}" for side, result in sides.items())

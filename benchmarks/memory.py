"""The replay memory alone, against other libraries' on the same data: workers take turns, ratios within a round."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from benchmarks import memory_bytes
from benchmarks.machine import load
from benchmarks.process import Failed
from benchmarks.rivals.case import CASES, Case
from benchmarks.rivals.client import LIMITS, RLRUN, Side
from benchmarks.rivals.environments import REQUIREMENTS as ALL
from benchmarks.speed import spread

SB3 = "stable-baselines3"
REQUIREMENTS = [name for name in ALL if name not in ("sbx", "numpyro")]  # one shares its memory, the other has none
EACH = dict.fromkeys(REQUIREMENTS, 1.0)
BARS: dict[str, dict[str, float]] = {  # rlrun's speed is at least so many times a rival's
    "insert64": EACH,
    "sample256": {**EACH, SB3: 5.0},
    "seq8": {"torchrl": 1.0, "sheeprl": 1.0},
    "seq50": {"torchrl": 1.0, "sheeprl": 1.0},
    "per256": {"tianshou": 1.0, "cpprb": 1.0},
}
MOST_MICROSECONDS = {"insert1": 6.0}  # of a transition
PARTS = (*CASES, *memory_bytes.BARS)
NOT_ASKED = "not asked for"
Absent = dict[str, str]  # by side: why there is no figure


def measure(names: list[str] | None = None, *, rivals: list[str] | None = None, rounds: int = 5) -> dict[str, Any]:
    """Return the speeds of all sides in each case, and the bytes that full tables take.

    rivals: which of them take part; None or [] for all, ["none"] for rlrun and the limits alone.
    """
    chosen = names or list(PARTS)
    cases = {name: CASES[name] for name in chosen if name in CASES}
    results = measure_cases(cases, rivals=rivals or list(REQUIREMENTS), rounds=rounds) if cases else {}
    return results | {name: memory_bytes.measure(name) for name in chosen if name not in CASES}


def measure_cases(cases: dict[str, Case], *, rivals: list[str], rounds: int) -> dict[str, Any]:
    """Start a worker a side, and take them through all cases."""
    absent: Absent = {name: NOT_ASKED for name in REQUIREMENTS if name not in rivals}
    with ExitStack() as stack:
        sides = []
        for name in (RLRUN, *LIMITS, *(name for name in REQUIREMENTS if name in rivals)):
            try:
                sides.append(stack.enter_context(Side(name)))
            except Failed as failure:
                absent[name] = str(failure)
        return {name: measure_case(name, case, sides, absent, rounds) for name, case in cases.items()}


def measure_case(name: str, case: Case, sides: list[Side], absent: Absent, rounds: int) -> dict[str, Any]:
    """Have all sides fill their memories, then time one after the other."""
    absent, sizes = dict(absent), {}
    for side in sides:
        try:
            answer = side.prepare(case)
        except Failed as failure:
            answer = {"lacks": str(failure)}
        if "lacks" in answer:
            absent[side.name] = answer["lacks"]
        else:
            sizes[side.name] = answer["bytes"]
    present = [side for side in sides if side.name in sizes]
    for side in present:
        side.seconds()  # not counted: the side prepared first waited for the others, and its memory is cold
    speeds, loads = [], []
    for number in range(rounds):
        loads.append(load())
        speeds.append({side.name: case.transitions / side.seconds() / 1e3 for side in present})
        print(f"{name} round {number + 1}: {_shown(speeds[-1])} thousand transitions/s", flush=True)
    return {
        "what": case.what,
        "transitions": case.transitions,
        "how": {side.name: side.about["how"] for side in present},
        "versions": {side.name: side.about["versions"] for side in present},
        "bytes": sizes,
        "load": loads,
        "rounds": speeds,
        **summary(name, speeds, absent),
    }


def summary(name: str, rounds: list[dict[str, float]], absent: Absent) -> dict[str, Any]:
    """Return medians with their range, rlrun's ratio to each side, and whether the bars are met.

    A bar against a side that should have been measured and was not is missed.
    """
    thousands = {side: spread([speeds[side] for speeds in rounds]) for side in rounds[0]}
    ratio = {
        side: spread([speeds[RLRUN] / speeds[side] for speeds in rounds])
        for side in thousands
        if side != RLRUN and RLRUN in thousands
    }
    bars = {side: bar for side, bar in BARS.get(name, {}).items() if absent.get(side) != NOT_ASKED}
    missed = [side for side, bar in bars.items() if side not in ratio or ratio[side]["median"] < bar]
    result: dict[str, Any] = {"thousands": thousands, "ratio": ratio, "bars": bars, "absent": absent}
    most = MOST_MICROSECONDS.get(name)
    if RLRUN in thousands:
        result |= {"microseconds": spread([1e3 / speeds[RLRUN] for speeds in rounds]), "most_microseconds": most}
    if RLRUN not in thousands or (most is not None and result["microseconds"]["median"] > most):
        missed.append(RLRUN)
    return {**result, "missed": missed, "passed": not missed}


def _shown(speeds: dict[str, float]) -> str:
    return ", ".join(f"{side} {speed:,.0f}" for side, speed in speeds.items())

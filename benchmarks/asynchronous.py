"""SAC on a Pendulum that takes 10 ms a step: stepped during learning, against stepped between updates."""

from __future__ import annotations

import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium

from benchmarks.process import run
from benchmarks.speed import spread
from rlrun.training.callback import Callback

SECONDS = 0.01  # that a step takes longer
FIRST, LAST = 260, 560  # environment steps between which time is taken
OVERRIDES = (
    *("algorithm=sac", "env=pendulum", "algorithm.warmup_steps=200", f"stop.env_steps={LAST + 40}"),
    *("evaluation.every=0", "checkpoint.every=0", "logger=[]"),
)
QUEUE = 8  # steps: a long one would be full when the clock starts, and flatter
BAR = 0.6
UPDATES = {"1": ("process",), "2": ("process",), "4": ("process", "thread"), "8": ("process",)}  # a step -> kinds
BALANCE = 2000 * SECONDS  # milliseconds from step to step, where learning takes as long as stepping


class Slow(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Sleep at each step, like a simulator or a robot that is waited for."""

    def __init__(self, env: gymnasium.Env[Any, Any], seconds: float) -> None:
        super().__init__(env)
        self.seconds = seconds

    def step(self, action: Any) -> Any:
        time.sleep(self.seconds)
        return self.env.step(action)


class Between(Callback):
    """Write down the seconds between the updates after two environment steps."""

    cycle = 1

    def __init__(self, path: str, first: int, last: int) -> None:
        self.path = Path(path)
        self.due = [first, last]
        self.marks: list[tuple[int, float]] = []

    def end_cycle(self, step: int) -> None:
        if self.due and step >= self.due[0]:
            self.marks.append((step, time.perf_counter()))
            self.due.pop(0)
            if not self.due:
                (begin, since), (end, until) = self.marks
                self.path.write_text(json.dumps((until - since) / (end - begin)))


def measure(*, rounds: int = 3) -> dict[str, Any]:
    """Return the milliseconds from one environment step to the next, updates included, and their ratios.

    The time of an update depends on the machine. The bar applies where the updates of a step take about as long as the
    step.
    """
    cases: dict[str, Any] = {}
    for updates, kinds in UPDATES.items():
        seconds: dict[str, list[float]] = {side: [] for side in ("sync", *kinds)}
        for _ in range(rounds):
            for side, taken in seconds.items():
                taken.append(one(side, updates))
        for kind in kinds:
            ratios = [during / between for during, between in zip(seconds[kind], seconds["sync"], strict=True)]
            result = {name: spread([1000 * duration for duration in seconds[name]]) for name in ("sync", kind)}
            about = {"updates": updates, "kind": kind, "words": overrides_of(kind, updates)}
            cases[f"{updates}-{kind}"] = {**about, "milliseconds": result, "ratio": spread(ratios)}
    processes = [case for case in cases.values() if case["kind"] == "process"]
    nearest = min(processes, key=lambda case: abs(case["milliseconds"]["sync"]["median"] - BALANCE))
    nearest |= {"bar": BAR, "passed": nearest["ratio"]["median"] < BAR}
    return cases


def overrides_of(side: str, updates: str) -> list[str]:
    """Return the overrides of a run, without those that measure it."""
    worker = [] if side == "sync" else ["+with=async", f"async.kind={side}", f"async.queue={QUEUE}"]
    wrapper = f"env.wrappers=[{{_target_:benchmarks.asynchronous.Slow,_partial_:true,seconds:{SECONDS}}}]"
    return [*OVERRIDES, f"algorithm.updates_per_step={updates}", wrapper, *worker]


def one(side: str, updates: str, *, first: int = FIRST, last: int = LAST) -> float:
    """Train once in a process of its own; return the seconds a step."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "seconds.json"
        clock = f"+callbacks.clock={{_target_:benchmarks.asynchronous.Between,path:{path},first:{first},last:{last}}}"
        run(
            ["-m", "rlrun", "train", *overrides_of(side, updates), clock, "--run-dir", f"{folder}/run"],
            folder=Path(folder),
        )
        return float(path.read_text())

"""Processes of environments that stop: the run exits with 1, and one line names the process and the cause.

They stop by a signal, by an exit with code 0, or by an exception, while training and after a resume.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium
import numpy as np
from tests.forked import start

PATIENCE = 300.0  # seconds in which a process must end
WAYS = {  # how the process stops -> the cause in the error message
    "SIGKILL": "it was killed by SIGKILL",
    "SIGSEGV": "it was killed by SIGSEGV",
    "os._exit": "it left with exit code 0",
    "sys.exit": r"benchmarks/leaving.py:\d+ in leave called sys\.exit\(0\) before the work was complete",
    "raise": "Odd: the fox met the hen",
}
GONE = ("SIGKILL", "SIGSEGV", "os._exit")  # the process sends no message
PLACES = {
    "env": (("env.vectorization=async", "num_envs=2"), "the process of env [01] is gone: ", r"in env [01]: \S*"),
    "collector": (
        ("+with=async",),
        "collector: its process is gone: ",
        r"collector: its process failed: .*in env 0: \S*",
    ),
}
OVERRIDES = (
    *("algorithm=dqn", "env.target=benchmarks.leaving.Leaving", "algorithm.hidden=[8]", "algorithm.batch_size=4"),
    *("algorithm.warmup_steps=20", "memory.length=500", "stop.env_steps=100_000", "checkpoint.every=10"),
    *("evaluation.every=0", "logger=[]"),
)


class Odd(Exception):
    """Cannot be unpickled."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"the {first} met the {second}")


def leave(way: str) -> None:
    """Leave the process."""
    faulthandler.disable()
    if way.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, way))
    elif way == "os._exit":
        os._exit(0)
    elif way == "sys.exit":
        sys.exit(0)
    else:
        raise Odd("fox", "hen")


class Leaving(gymnasium.Env[Any, Any]):
    """Leaves at a step."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, way: str = "raise", at: int = 45) -> None:
        self.way, self.at, self.steps = way, at, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.steps >= self.at:
            leave(self.way)
        return np.zeros(2, np.float32), 1.0, False, self.steps % 7 == 0, {}


def one_cell(*, times: int, workers: int) -> dict[str, Any]:
    """Return how often each combination ended as it should, and what was wrong where it did not."""
    begun = time.perf_counter()
    cases = [(place, way) for _ in range(times) for place in PLACES for way in WAYS]
    with ThreadPoolExecutor(workers) as pool:
        endings = list(pool.map(lambda case: _both(*case), cases))
    wrong = [message for messages in endings for message in messages if message is not None]
    result: dict[str, Any] = {"words": list(OVERRIDES), "wanted": 2 * len(cases), "kills": 2 * len(cases) - len(wrong)}
    result |= {"resumes": len(cases), "passed": not wrong, "wrong": wrong[:20]}
    result["wall_seconds"] = round(time.perf_counter() - begun, 1)
    print(f"leaving: {result['kills']} of {result['wanted']} as they should", *wrong[:20], sep="\n", flush=True)
    return result


def _both(place: str, way: str) -> list[str | None]:
    """Train, and resume; return what was wrong with each, or None."""
    overrides, gone, failed = PLACES[place]
    pattern = (gone if way in GONE else failed) + WAYS[way]
    with TemporaryDirectory() as folder:
        command = ["train", *OVERRIDES, *overrides, f"env.kwargs.way={way}", "--run-dir", "run"]
        return [_wrong(f"{place}-{way}", request, pattern, Path(folder)) for request in (command, ["resume", "run"])]


def _wrong(name: str, request: list[str], pattern: str, folder: Path) -> str | None:
    log = folder / f"{request[0]}.txt"
    process = start(request, folder=folder, log=log)
    code = process.wait(PATIENCE)
    last = (log.read_text().splitlines() or [""])[-1]
    good = code == 1 and re.fullmatch(f"rlrun: .*{pattern}", last)
    return None if good else f"{name} {request[0]}: exit code {code}, {last}"

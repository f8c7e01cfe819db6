"""Time a library that cannot be asked: the class of its environment counts steps, and ends the process at the last.

Both marks are looked at as a step begins, when all learning from the steps before is done.
"""

from __future__ import annotations

import gc
import json
import os
import time
from typing import Any

import gymnasium
import torch
from gymnasium.envs.registration import load_env_creator

from benchmarks.clock import Clock
from benchmarks.first_step import report


def count(numbers: dict[str, Any], begun: float) -> None:
    """Let every step of the environment be counted, of all lanes together.

    numbers: env and the window, first and last; begun: `time.time()` as the process was started.
    """
    kind: Any = load_env_creator(gymnasium.spec(numbers["env"]).entry_point)  # type: ignore[arg-type]
    step, clock = kind.step, Clock(first=numbers["first"], last=numbers["last"])
    made, first_step = 0, 0.0

    def counting(env: Any, action: Any) -> Any:
        nonlocal made, first_step
        first_step = first_step or time.time() - begun
        if made >= clock.due:
            if not clock.marks:
                clock.watch(optimisers())
            if clock.note(made):
                print(json.dumps(report(clock, first_step)), flush=True)
                os._exit(0)
        made += 1
        return step(env, action)

    kind.step = counting


def optimisers() -> list[torch.optim.Optimizer]:
    """Return those of torch that there are; what wraps them would be counted twice."""
    there = [one for one in gc.get_objects() if issubclass(type(one), torch.optim.Optimizer)]
    return [one for one in there if type(one).__module__.startswith("torch.optim.")]

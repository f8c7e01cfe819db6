"""Clocks that measure any training loop alike, through the environment that it steps.

Every library calls the class of the environment in the end, so a meter needs no loop, callback or trainer. A mark is
made when a step begins: all work of earlier steps is done then.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakSet

import gymnasium
import torch
from gymnasium.envs.registration import load_env_creator

from benchmarks.clock import Clock

Report = Callable[[dict[str, float]], None]


class Meter:
    """Count environment steps from the first on, and report the time between two of them."""

    def __init__(self, *, first: int, last: int, begun: float, report: Report) -> None:
        self.clock = Clock(first=first, last=last)
        self.begun, self.report = begun, report
        self.steps, self.first_step = 0, 0.0
        self.optimizers: WeakSet[torch.optim.Optimizer] = WeakSet()

    def watch(self, env: str) -> None:
        """Have every environment of an id counted, in envs or as the vector environment that comes with it.

        Optimizers are noted as they are made; they count their steps themselves.
        """
        self._note_optimizers()
        spec = gymnasium.spec(env)
        for entry in filter(None, (spec.entry_point, spec.vector_entry_point)):
            self._patch(load_env_creator(entry))

    def _note_optimizers(self) -> None:
        optimizers, begin = self.optimizers, torch.optim.Optimizer.__init__

        def noted(optimizer: torch.optim.Optimizer, *args: Any, **named: Any) -> None:
            optimizers.add(optimizer)
            begin(optimizer, *args, **named)

        torch.optim.Optimizer.__init__ = noted  # type: ignore[method-assign]

    def _patch(self, kind: Any) -> None:
        meter, step = self, kind.step

        def counted(env: Any, action: Any) -> Any:
            if meter.steps >= meter.clock.due or not meter.steps:
                meter.look()
            meter.steps += getattr(env, "num_envs", 1)
            return step(env, action)

        kind.step = counted

    def look(self) -> None:
        """Mark the first step, the beginning of the window, or its end."""
        if not self.steps:
            self.first_step = time.time() - self.begun
            return
        if not self.clock.marks:
            self.clock.watch(optimizer for optimizer in self.optimizers if optimizer.state)
        if self.clock.note(self.steps):
            self.report({**self.clock.report(), "first_step": self.first_step, "megabytes": peak()})


def peak() -> float:
    """Return the peak memory of this program, in MB.

    Read from /proc if there is one: `getrusage` includes the memory that the process had before it became this program.
    """
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().partition("VmHWM:")[2].split()[0]) / 1024
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit

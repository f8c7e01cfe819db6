"""Notes of when a loop passed two environment steps, taken alike for both sides of a comparison."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TypedDict

import torch


class Mark(TypedDict):
    """One look at the clocks; `steps_of_optimizers` is the sum over all optimizers.

    `updates` are those of a parameter: steps of each optimizer times the share of all parameters that it
    trains. They are the same whether one optimizer has two networks or each its own.
    """

    step: int
    seconds: float
    processor_seconds: float
    steps_of_optimizers: int
    updates: float


class Clock:
    """Mark the first update at or after environment step `first`, and the first at or after `last`.

    Optimizers are counted by their own records, so that the window holds no counting.
    """

    def __init__(self, *, first: int, last: int) -> None:
        self.due = first
        self.last = last
        self.marks: list[Mark] = []
        self.parameters = 0
        self._optimizers: list[torch.optim.Optimizer] = []
        self._sizes: list[int] = []

    def watch(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Set the optimizers whose steps are counted."""
        self._optimizers = list(optimizers)
        self._sizes = [_size(optimizer) for optimizer in self._optimizers]
        self.parameters = sum(self._sizes)

    def note(self, step: int) -> bool:
        """Mark this moment, once `step >= due`; True at the last mark."""
        counts = [_steps(optimizer) for optimizer in self._optimizers]
        updates = sum(steps * size for steps, size in zip(counts, self._sizes, strict=True)) / max(self.parameters, 1)
        now = Mark(
            step=step,
            seconds=time.perf_counter(),
            processor_seconds=time.process_time(),
            steps_of_optimizers=sum(counts),
            updates=updates,
        )
        self.marks.append(now)
        self.due = self.last
        return len(self.marks) == 2

    def report(self) -> dict[str, float]:
        """Return env steps, seconds and optimizer steps between the marks, and the number of trained parameters."""
        first, last = self.marks
        metrics: dict[str, float] = {"env_steps": last["step"] - first["step"], "parameters": self.parameters}
        metrics["seconds"] = last["seconds"] - first["seconds"]
        metrics["processor_seconds"] = last["processor_seconds"] - first["processor_seconds"]
        metrics["steps_of_optimizers"] = last["steps_of_optimizers"] - first["steps_of_optimizers"]
        metrics["updates"] = last["updates"] - first["updates"]
        return metrics


def _size(optimizer: torch.optim.Optimizer) -> int:
    """Return how many numbers an optimizer trains."""
    return sum(parameter.numel() for group in optimizer.param_groups for parameter in group["params"])


def _steps(optimizer: torch.optim.Optimizer) -> int:
    """Return how many steps an optimizer made, by its first parameter."""
    for state in optimizer.state.values():
        return int(state["step"])
    return 0

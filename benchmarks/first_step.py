"""When a process first steps an environment, and the most memory it held: taken alike on every side of a comparison."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.registration import load_env_creator

from benchmarks.clock import Clock


class Start:
    """Note the seconds from `begun` to the first step of an environment, whoever opened it and in lanes or alone.

    The class of the environment is changed until then; afterwards a step costs what it always did.
    begun: `time.time()` as the process was started.
    """

    def __init__(self, env: str, begun: float) -> None:
        self.begun = begun
        self.seconds: float | None = None
        spec = gymnasium.spec(env)
        self._kinds = [load_env_creator(point) for point in (spec.entry_point, spec.vector_entry_point) if point]
        self._steps = [kind.step for kind in self._kinds]
        for kind, step in zip(self._kinds, self._steps, strict=True):
            kind.step = self._noting(step)

    def _noting(self, step: Any) -> Any:
        def noting(env: Any, action: Any) -> Any:
            self.seconds = time.time() - self.begun
            for kind, own in zip(self._kinds, self._steps, strict=True):
                kind.step = own
            return step(env, action)

        return noting


def report(clock: Clock, first_step: float | None) -> dict[str, float | None]:
    """Return what a process that is now measured came to."""
    return {**clock.report(), "first_step": first_step, "peak_kilobytes": peak()}


def peak() -> int:
    """Return the most kilobytes that this process held; getrusage would count whoever started it, too."""
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])

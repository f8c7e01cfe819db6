"""What is measured, and the data for it: alike for every side, and known without rlrun."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
Call = Callable[[], Any]

COUNT = 256
EPISODE = 200
OBSERVATION, ACTION = 17, 6
FRAME = (84, 84)
STACK = 4
FIELDS = ("observation", "action", "reward", "terminated", "truncated")
ALPHA, BETA = 0.6, 0.4


class Case(NamedTuple):
    """A call to time. kind: insert (a whole episode of every env), sample, sequence or prioritized (of 256 each)."""

    kind: str
    envs: int = 1
    length: int = 1
    capacity: int = 1_000_000
    images: bool = False

    @property
    def transitions(self) -> int:
        """How many a call moves."""
        return EPISODE * self.envs if self.kind == "insert" else COUNT * self.length

    @property
    def episodes(self) -> int:
        """How many every env needs until the memory is full and has begun to overwrite."""
        return math.ceil(self.capacity / (EPISODE * self.envs)) + 1

    @property
    def what(self) -> str:
        """Say what a call does."""
        envs = "one env" if self.envs == 1 else f"{self.envs} envs at once"
        kinds = {
            "insert": f"insert, {envs}, episodes of {EPISODE} steps",
            "sample": f"sample {COUNT} transitions",
            "sequence": f"sample {COUNT} sequences of {self.length}",
            "prioritized": f"sample {COUNT} transitions by priority, and update their priorities",
        }
        numbers = f"stacks of {STACK} frames of 84 × 84" if self.images else f"{OBSERVATION} numbers"
        return f"{kinds[self.kind]}; observations are {numbers}, capacity {self.capacity:,}"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of an observation."""
        return (STACK, *FRAME) if self.images else (OBSERVATION,)


CASES = {
    "insert1": Case("insert"),
    "insert64": Case("insert", envs=64),
    "sample256": Case("sample"),
    "seq8": Case("sequence", length=8),
    "seq50": Case("sequence", length=50),
    "per256": Case("prioritized"),
    "images256": Case("sample", capacity=10_000, images=True),
}


class Episode(NamedTuple):
    """What every env went through; all end by truncation."""

    observation: Array  # [T + 1, N, …] float32, or uint8 stacks of frames
    action: Array  # [T, N, 6] float32
    reward: Array  # [T, N] float32
    terminated: Array  # [T, N] bool
    truncated: Array  # [T, N] bool

    def flat(self) -> dict[str, Array]:
        """Return all its transitions, [T * N, …], with the next observations."""
        fields = {name: getattr(self, name) for name in FIELDS[1:]}
        fields |= {"observation": self.observation[:-1], "next_observation": self.observation[1:]}
        return {name: value.reshape(-1, *value.shape[2:]) for name, value in fields.items()}


def episode(case: Case) -> Episode:
    """Draw an episode of every env; the same for the same case."""
    generator = np.random.Generator(np.random.PCG64(0))
    size = (EPISODE, case.envs)
    truncated = np.zeros(size, bool)
    truncated[-1] = True
    return Episode(
        observation=_observations(generator, case),
        action=generator.uniform(-1, 1, (*size, ACTION)).astype(np.float32),
        reward=generator.standard_normal(size, np.float32),
        terminated=np.zeros(size, bool),
        truncated=truncated,
    )


def _observations(generator: np.random.Generator, case: Case) -> Array:
    if not case.images:
        return generator.standard_normal((EPISODE + 1, case.envs, *case.shape), np.float32)
    frames = generator.integers(0, 256, (EPISODE + STACK, case.envs, *FRAME), np.uint8)
    frames[: STACK - 1] = frames[STACK - 1]  # a stack begins with the first frame, repeated
    stacks = np.lib.stride_tricks.sliding_window_view(frames, STACK, axis=0)  # [T + 1, N, 84, 84, 4]
    return np.ascontiguousarray(np.moveaxis(stacks, -1, 2))


def priorities() -> list[Array]:
    """Draw some lots of 256 priorities, used one after the other."""
    generator = np.random.Generator(np.random.PCG64(1))
    return list(generator.exponential(size=(16, COUNT)).astype(np.float32))


def fill(write: Call, case: Case) -> None:
    """Write so many episodes that the memory overwrites from now on."""
    for _ in range(case.episodes):
        write()

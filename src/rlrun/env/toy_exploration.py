"""Tasks that are about where to go, not about what is paid; reached as `rlrun.env.toys.…`."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from rlrun.errors import ConfigError
from rlrun.typing import Array


class Corridor(gymnasium.Env[Array, Any]):
    """Find the way to the end of a corridor of `length` cells; nothing is paid before.

    observation: the cell, one-hot [length]; action: 0 or 1, of which one leads a cell on and the other one back (out
    of the first: nowhere). Which does what differs from cell to cell and is the same in every episode (`layout`
    seeds it). Arriving behind the last cell pays 1 and terminates; episodes are cut off (truncated) after twice
    `length` steps.

    Answer: return 1 after `length` steps. At random one in 7,600 episodes gets there (`success`).
    """

    def __init__(self, length: int = 30, *, layout: int = 0) -> None:
        if length < 2:
            raise ConfigError(f"env.kwargs.length must be at least 2, not {length}")
        self.length = length
        self.steps = 2 * length
        self.onward = np.random.default_rng(layout).integers(0, 2, length)  # the action that leads on
        self.observation_space = Box(0.0, 1.0, (length,), np.float32)
        self.action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.cell = self.step_number = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.cell = self.cell + 1 if int(action) == self.onward[self.cell] else max(self.cell - 1, 0)
        self.step_number += 1
        arrived = self.cell == self.length
        return self._observe(), float(arrived), arrived, self.step_number >= self.steps and not arrived, {}

    def success(self) -> float:
        """Return the share of episodes that arrive by uniformly random actions."""
        there = np.eye(self.length + 1)[0]
        for _ in range(self.steps):
            moved = np.zeros_like(there)
            moved[1:] += 0.5 * there[:-1]
            moved[:-2] += 0.5 * there[1:-1]
            moved[0] += 0.5 * there[0]
            moved[-1] += there[-1]
            there = moved
        return float(there[-1])

    def _observe(self) -> Array:
        observation = np.zeros(self.length, np.float32)
        if self.cell < self.length:  # behind the last cell there is nothing
            observation[self.cell] = 1.0
        return observation


class PointMass(gymnasium.Env[Array, Array]):
    """Move a point about a square for 30 steps; nothing is ever paid.

    observation: position [2] in [-1, 1]; action: [2] in [-1, 1], a tenth of which is the way of a step, as far as the
    walls. Episodes begin near the middle and are cut off (truncated).

    Answer: every return is 0. Of K skills that go to places of their own, K = 4 say to the corners, any can be told
    from the position by which a corner is nearest, but for the first steps.
    """

    steps = 30

    def __init__(self) -> None:
        self.observation_space = Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.position = self.np_random.uniform(-0.05, 0.05, 2).astype(np.float32)
        self.step_number = 0
        return self.position.copy(), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.position = np.clip(self.position + np.float32(0.1) * np.clip(action, -1.0, 1.0), -1.0, 1.0)
        self.step_number += 1
        return self.position.copy(), 0.0, False, self.step_number >= self.steps, {}

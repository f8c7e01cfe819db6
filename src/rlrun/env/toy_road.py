"""A car on a road without obstacles."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict

from rlrun.typing import Array


class Road(gymnasium.Env[Any, Array]):
    """Drive a car along waypoints, ten metres apart on a quarter of a circle, and come to the goal at their end.

    observation: {"goal": [2], "navigation": [2, 2]}: where the goal and the next two waypoints lie, in metres ahead of
    the car and to its left; action: [3]: speed in [0, 1] of 5 m a step, steer in [-1, 1] of half a turn, of which the
    car manages 0.5 rad a step, and reverse, above 0.5 backwards. reward: metres by which the goal came nearer.
    Terminated within 1 m of the goal, truncated after 100 steps. The bend goes to either side.

    Answer: who arrives has a return of 89.5 to 90.5 (a radius of 64 m), whatever the way.
    """

    steps, radius = 100, 64.0

    def __init__(self) -> None:
        far = 4.0 * self.radius + 5.0 * self.steps
        self.observation_space = Dict(
            {"goal": Box(-far, far, (2,), np.float32), "navigation": Box(-far, far, (2, 2), np.float32)}
        )
        self.action_space = Box(np.array([0.0, -1.0, 0.0], np.float32), np.ones(3, np.float32))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        super().reset(seed=seed)
        angle = np.arange(1, 11) * math.pi / 20.0
        side = self.np_random.choice((-1.0, 1.0))
        self.waypoints = self.radius * np.stack((np.sin(angle), side * (1.0 - np.cos(angle))), -1)
        self.position = np.zeros(2)
        self.heading = float(self.np_random.uniform(-0.5, 0.5))
        self.next, self.step_number = 0, 0
        return self._observe(), {}

    def step(self, action: Array) -> tuple[dict[str, Array], float, bool, bool, dict[str, Any]]:
        before = self._distance(-1)
        speed, steer, reverse = (float(part) for part in action)
        self.heading += min(max(math.pi * steer, -0.5), 0.5)
        way = 5.0 * speed * (-1.0 if reverse > 0.5 else 1.0)
        self.position = self.position + way * np.array([math.cos(self.heading), math.sin(self.heading)])
        while self.next < len(self.waypoints) - 1 and self._distance(self.next) < 5.0:
            self.next += 1
        self.step_number += 1
        after = self._distance(-1)
        return self._observe(), before - after, after < 1.0, self.step_number >= self.steps, {}

    def _distance(self, waypoint: int) -> float:
        return float(np.linalg.norm(self.waypoints[waypoint] - self.position))

    def _observe(self) -> dict[str, Array]:
        last = len(self.waypoints) - 1
        chosen = self.waypoints[[last, self.next, min(self.next + 1, last)]] - self.position
        cos, sin = math.cos(self.heading), math.sin(self.heading)
        seen = (chosen @ np.array([[cos, -sin], [sin, cos]])).astype(np.float32)
        return {"goal": seen[0], "navigation": seen[1:]}

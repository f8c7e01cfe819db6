"""Episodes that differ by how they end, and by nothing else; reached as `rlrun.env.toys.Ending`."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from rlrun.typing import Array


class Ending(gymnasium.Env[Array, Any]):
    """Wait three steps; what is done changes nothing.

    observation: [3], drawn anew at each step from [-1, 1], at the last step `last` three times. action: 0 or 1, or with
    `continuous` [1] in [-1, 1]. reward: `reward` at each step. The third step ends the episode, as `ending` says.

    Answer: where the episode is terminated, the value of its last state is never asked for, so `last` changes nothing;
    where it is truncated, bootstrapping makes it count.
    """

    steps = 3

    def __init__(
        self,
        *,
        ending: Literal["terminated", "truncated"] = "truncated",
        last: float = 0.5,
        reward: float = 1.0,
        continuous: bool = False,
    ) -> None:
        self.ending, self.last, self.reward = ending, last, reward
        self.observation_space = Box(-1.0, 1.0, (3,), np.float32)
        self.action_space = Box(-1.0, 1.0, (1,), np.float32) if continuous else Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.step_number = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.step_number += 1
        over = self.step_number == self.steps
        observation = np.full(3, self.last, np.float32) if over else self._observe()
        terminated = self.ending == "terminated"
        return observation, self.reward, over and terminated, over and not terminated, {}

    def _observe(self) -> Array:
        return self.np_random.uniform(-1.0, 1.0, 3).astype(np.float32)

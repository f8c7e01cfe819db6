"""Tasks whose answer is shown before it is asked for; reached as `rlrun.env.toys.…`.

Who sees the present observation only can do no better than guess.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from rlrun.errors import ConfigError
from rlrun.typing import Array

Options = dict[str, Any] | None


class Recall(gymnasium.Env[Array, Any]):
    """See a sign once, and repeat it `gap` steps later.

    observation: [1], at the first step the sign, -1 or 1 alike often, then zeros. action: 0 for -1 or 1 for 1;
    with `continuous` [1] in [-1, 1], of which the sign counts. reward: 1 if the action of the last step, `gap` steps
    after the first, is right; else 0. Episodes terminate after gap + 1 steps.

    Answer: the sign of the first step; return 1, against 1/2 without memory.
    """

    def __init__(self, gap: int = 5, *, continuous: bool = False) -> None:
        if gap < 1:
            raise ConfigError(f"env.kwargs.gap must be at least 1, not {gap}")
        self.gap, self.continuous = gap, continuous
        self.observation_space = Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = Box(-1.0, 1.0, (1,), np.float32) if continuous else Discrete(2)

    def reset(self, *, seed: int | None = None, options: Options = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.positive = bool(self.np_random.integers(2))
        self.step_number = 0
        return np.array([1.0 if self.positive else -1.0], np.float32), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        answer = float(action[0]) > 0.0 if self.continuous else bool(action)
        over = self.step_number == self.gap
        self.step_number += 1
        return np.zeros(1, np.float32), float(over and answer == self.positive), over, False, {}


class TMaze(gymnasium.Env[Array, Any]):
    """Walk down a corridor and turn to the side that a sign at its beginning told (Bakker 2001).

    observation: [3]: at the beginning the sign of the side, -1 left or 1 right, alike often; whether this is the
    corridor; whether this is the junction `length` steps further. action: 0 forward, 1 left, 2 right. In the corridor
    only forward moves, at the junction only turning does, which terminates the episode: reward 1 on the side of
    the sign, else 0. Cut off (truncated) after 4 * (length + 1) steps.

    Answer: forward `length` times, then the sign's side; return 1, against 1/2 without memory.
    """

    def __init__(self, length: int = 10) -> None:
        if length < 1:
            raise ConfigError(f"env.kwargs.length must be at least 1, not {length}")
        self.length = length
        self.observation_space = Box(-1.0, 1.0, (3,), np.float32)
        self.action_space = Discrete(3)

    def reset(self, *, seed: int | None = None, options: Options = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.side = 1 + int(self.np_random.integers(2))
        self.position = self.step_number = 0
        return np.array([2 * self.side - 3, 1, 0], np.float32), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.step_number += 1
        junction = self.position == self.length
        over = junction and int(action) != 0
        reward = float(over and int(action) == self.side)
        if not junction and int(action) == 0:
            self.position += 1
        junction = self.position == self.length
        observation = np.array([0, not junction, junction], np.float32)
        return observation, reward, over, not over and self.step_number >= 4 * (self.length + 1), {}

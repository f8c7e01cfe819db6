"""Toys that want a memory: the current observation alone does not help."""

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from rlrun.core.errors import ConfigError
from rlrun.core.typing import Array
from rlrun.env.toys.toy import Toy


class Recall(Toy):
    """See a sign once, and repeat it `gap` steps later; the current observation alone does not help.

    observation: [1], at the first step the sign, -1 or 1 with equal probability, then zeros. action: 0 for -1 or 1 for
    1; with `continuous` [1] in [-1, 1], whose sign counts. reward: 1 if the action of the last step, `gap` steps
    after the first, is right; else 0. Episodes terminate after gap + 1 steps.

    Answer: the sign of the first step; return 1, against 1/2 without memory.
    """

    def __init__(self, gap: int = 5, *, continuous: bool = False) -> None:
        if gap < 1:
            raise ConfigError(f"env.kwargs.gap must be at least 1, not {gap}")
        self.gap, self.continuous = gap, continuous
        self.observation_space = Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = Box(-1.0, 1.0, (1,), np.float32) if continuous else Discrete(2)

    def begin(self) -> None:
        self.positive = bool(self.np_random.integers(2))

    def act(self, action: Any) -> tuple[float, bool]:
        answer = float(action[0]) > 0.0 if self.continuous else bool(action)
        over = self.step_number > self.gap
        return float(over and answer == self.positive), over

    def observe(self) -> Array:
        return np.array([0.0 if self.step_number else 1.0 if self.positive else -1.0], np.float32)


class TMaze(Toy):
    """Walk down a corridor, and turn to the side of a sign at its beginning (Bakker 2001).

    observation: [3]: at the beginning the sign of the side, -1 left or 1 right, with equal probability; whether this is
    the corridor; whether this is the junction `length` steps further. action: 0 forward, 1 left, 2 right. In the
    corridor only forward moves, at the junction only turning does. It terminates the episode: reward 1 on the side of
    the sign, else 0. Truncated after 4 * (length + 1) steps.

    Answer: forward `length` times, then the sign's side; return 1, against 1/2 without memory.
    """

    def __init__(self, length: int = 10) -> None:
        if length < 1:
            raise ConfigError(f"env.kwargs.length must be at least 1, not {length}")
        self.length, self.steps = length, 4 * (length + 1)
        self.observation_space = Box(-1.0, 1.0, (3,), np.float32)
        self.action_space = Discrete(3)

    def begin(self) -> None:
        self.side = 1 + int(self.np_random.integers(2))
        self.position = 0

    def act(self, action: Any) -> tuple[float, bool]:
        over = self.position == self.length and int(action) != 0
        if self.position < self.length and int(action) == 0:
            self.position += 1
        return float(over and int(action) == self.side), over

    def observe(self) -> Array:
        junction = self.position == self.length
        return np.array([0 if self.step_number else 2 * self.side - 3, not junction, junction], np.float32)

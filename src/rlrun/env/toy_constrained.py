"""A task with a constraint; reached as `rlrun.env.toys.ConstrainedBandit`."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.spaces import Box

from rlrun.errors import ConfigError
from rlrun.typing import Array


class ConstrainedBandit(gymnasium.Env[Array, Array]):
    """Choose a number, once: what pays most costs, too.

    observation: [1], always one; action: a in [-1, 1]; reward: [-(a - 1)², -(1 + a) / 2], the second the cost. Every
    episode terminates after one step.

    cliff: where given, the cost is 1 for actions above it and 0 for others.
    form: "rewards", or "info": the reward is a plain number, and the cost stands in the info of the step as `cost`.

    Answer: with weights (1, w) the best action is 1 - w / 4. Where the mean cost may be c at most it is 2c - 1, which
    the weights (1, 8 (1 - c)) make the best one: for c = 0.25 the action is -0.5, the weights sum to 1 as (1/7, 6/7).
    With a cliff the best action that costs nothing is the cliff itself.
    """

    def __init__(self, form: Literal["rewards", "info"] = "rewards", cliff: float | None = None) -> None:
        if form not in ("rewards", "info"):
            raise ConfigError(f"env.kwargs.form: wanted rewards or info, got '{form}'")
        self.form = form
        self.cliff = cliff
        self.observation_space = Box(0.0, 1.0, (1,), np.float32)
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)
        if form == "rewards":
            self.reward_space = Box(np.array([-4.0, -1.0], np.float32), np.zeros(2, np.float32))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action: Array) -> tuple[Array, Any, bool, bool, dict[str, Any]]:
        chosen = float(action[0])
        cost = (1.0 + chosen) / 2.0 if self.cliff is None else float(chosen > self.cliff)
        pay = -((chosen - 1.0) ** 2)
        if self.form == "info":
            return np.ones(1, np.float32), pay, True, False, {"cost": cost}
        return np.ones(1, np.float32), np.array([pay, -cost], np.float32), True, False, {}

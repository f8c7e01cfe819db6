"""Small environments with known answers, in numpy alone: `env.target=rlrun.env.toys.HitTheMiddle`.

Each docstring states the answer that a correct algorithm finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from rlrun.env.toy_constrained import ConstrainedBandit
from rlrun.env.toy_ending import Ending
from rlrun.env.toy_exploration import Corridor, PointMass
from rlrun.env.toy_memory import Recall, TMaze
from rlrun.env.toy_road import Road
from rlrun.env.toy_spaces import DictObservation, DiscreteStart, ImageObservation, MultiDiscreteAction, TupleSpaces
from rlrun.errors import ConfigError
from rlrun.typing import Array

__all__ = [
    "Bandit",
    "Chain",
    "ConstrainedBandit",
    "Corridor",
    "DictObservation",
    "DiscreteStart",
    "Ending",
    "HitTheMiddle",
    "ImageObservation",
    "MixedAction",
    "MultiDiscreteAction",
    "PointMass",
    "Recall",
    "Road",
    "TMaze",
    "TupleSpaces",
]

Options = dict[str, Any] | None
Transition = tuple[Any, float, bool, bool, dict[str, Any]]


class HitTheMiddle(gymnasium.Env[Array, Array]):
    """Push a ball on a line to the middle and keep it there.

    observation: [position in [-10, 10], velocity]; action: [1] change of velocity in [-1, 1]. Walls at ±10
    turn the velocity round. reward = -position². Episodes are cut off (truncated) after 31 steps.

    Answer: the best return is -38.4 on average (value iteration on a fine grid); pushing with
    -0.5 * position - 0.8 * velocity, clipped, has -39.7. Doing nothing has -1054, random pushes -1134.
    """

    steps = 31
    wall = 10.0

    def __init__(self) -> None:
        bound = np.array([self.wall, 32.0], np.float32)  # 0.25 + 31 steps of 1
        self.observation_space = Box(-bound, bound, dtype=np.float32)
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Options = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.position = float(self.np_random.uniform(-10.0, 10.0))
        self.velocity = float(self.np_random.uniform(-0.25, 0.25))
        self.step_number = 0
        return self._observe(), {}

    def step(self, action: Array) -> Transition:
        self.velocity += min(max(float(action[0]), -1.0), 1.0)
        self.position += self.velocity
        if abs(self.position) > self.wall:
            self.position = self.wall if self.position > 0 else -self.wall
            self.velocity = -self.velocity
        self.step_number += 1
        return self._observe(), -(self.position**2), False, self.step_number >= self.steps, {}

    def _observe(self) -> Array:
        return np.array([self.position, self.velocity], np.float32)


class Bandit(gymnasium.Env[Array, Any]):
    """Pull one of K arms, once.

    observation: [1], always one; action: the arm; reward: the arm's mean plus `noise` times a normal number.
    Every episode terminates after one step.

    Answer: the arm with the largest mean; its value is that mean (0.9 by default, against 0.5 at random).
    """

    def __init__(self, means: Sequence[float] = (0.1, 0.5, 0.9), noise: float = 0.0) -> None:
        self.means = [float(mean) for mean in means]
        self.noise = noise
        self.observation_space = Box(0.0, 1.0, (1,), np.float32)
        self.action_space = Discrete(len(self.means))

    def reset(self, *, seed: int | None = None, options: Options = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action: Any) -> Transition:
        reward = self.means[int(action)]
        if self.noise:
            reward += self.noise * float(self.np_random.standard_normal())
        return np.ones(1, np.float32), reward, True, False, {}


class Chain(gymnasium.Env[Array, Any]):
    """Walk round a ring of `length` states, reward 1 a step, whatever the action; one round is one episode.

    observation: the state, one-hot [length] or as [1] in [0, 1); every episode starts in state 0 and its last
    observation is state 0 again, so a cut-off episode goes on where states have been seen and valued.

    Answer: with discount g, state k is worth (1 - g^(length - k)) / (1 - g) where episodes end by
    `terminated`, and 1 / (1 - g), in every state, where they end by `truncated`. Both actions are worth the same.
    """

    def __init__(
        self,
        length: int = 5,
        *,
        ending: Literal["terminated", "truncated"] = "terminated",
        one_hot: bool = True,
        continuous: bool = False,
    ) -> None:
        if ending not in ("terminated", "truncated"):
            raise ConfigError(f"env.kwargs.ending is 'terminated' or 'truncated', got {ending!r}")
        self.length, self.terminates, self.one_hot = length, ending == "terminated", one_hot
        self.observation_space = Box(0.0, 1.0, (length if one_hot else 1,), np.float32)
        self.action_space = Box(-1.0, 1.0, (1,), np.float32) if continuous else Discrete(2)

    def reset(self, *, seed: int | None = None, options: Options = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = 0
        return self._observe(), {}

    def step(self, action: Any) -> Transition:
        self.state = (self.state + 1) % self.length
        over = self.state == 0
        return self._observe(), 1.0, over and self.terminates, over and not self.terminates, {}

    def value(self, state: int, discount: float) -> float:
        """Return the true value of a state."""
        end_discount = discount ** (self.length - state) if self.terminates else 0.0
        return (1.0 - end_discount) / (1.0 - discount)

    def _observe(self) -> Array:
        if not self.one_hot:
            return np.array([self.state / self.length], np.float32)
        observation = np.zeros(self.length, np.float32)
        observation[self.state] = 1.0
        return observation


class MixedAction(gymnasium.Env[Array, dict[str, Any]]):
    """Name a number's half and repeat the number: a discrete and a continuous action at once.

    observation: [1] x, drawn from [0, 1) at each step; action: {"choice": 0 or 1, "level": [1] in [0, 1]};
    reward = 1 - |level - x| where choice says whether x > 0.5, else 0. Truncated after 10 steps.

    Answer: choice = (x > 0.5), level = x; reward 1 a step, return 10. Uniform random actions have a return
    of 10 * 1/2 * (1 - 1/3) = 3.33 on average.
    """

    steps = 10

    def __init__(self) -> None:
        self.observation_space = Box(0.0, 1.0, (1,), np.float32)
        self.action_space = Dict({"choice": Discrete(2), "level": Box(0.0, 1.0, (1,), np.float32)})

    def reset(self, *, seed: int | None = None, options: Options = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.step_number = 0
        return self._draw(), {}

    def step(self, action: dict[str, Any]) -> Transition:
        x = float(self.x[0])
        right = int(action["choice"]) == int(x > 0.5)
        reward = 1.0 - abs(float(action["level"][0]) - x) if right else 0.0
        self.step_number += 1
        return self._draw(), reward, False, self.step_number >= self.steps, {}

    def _draw(self) -> Array:
        self.x = self.np_random.random(1, dtype=np.float32)
        return self.x

"""A toy whose action has more numbers than its task needs; import it from `rlrun.env.toys`."""

import math

import numpy as np
from gymnasium.spaces import Box

from rlrun.core.typing import Array
from rlrun.env.toy_spaces import Toy

ANGLES = [index * math.pi / 4.0 for index in range(4)]
DIRECTIONS = np.array([[math.cos(angle) for angle in ANGLES], [math.sin(angle) for angle in ANGLES]])  # [2, thrusters]


class Thrusters(Toy):
    """Bring a point in a plane to the origin by four thrusters, whose forces add up to two numbers.

    observation: position [2], velocity [2]; action: thrust u [4] in [-1, 1] towards 0, 45, 90 and 135 degrees. A step
    multiplies the velocity by 0.9, adds 0.02 times the force F u [2] to it, and the velocity to the position. reward:
    -|position|² - 0.3 |u|². Episodes begin at rest in the square [-1, 1]² and are truncated after 50 steps.

    Answer: the least thrusts of a force f are Fᵀ f / 2, as F Fᵀ = 2. A linear quadratic regulator has the force
    -2.29 position - 9.66 velocity. By these thrusts, clipped, its return is -3.63 on average. No policy has more than
    -3.60, the regulator's return without bounds. Random thrusts have -92.3, and doing nothing -33.3.
    """

    steps = 50
    keep, push, fuel = 0.9, 0.02, 0.3

    def __init__(self) -> None:
        bound = np.array([26.0, 26.0, 0.5, 0.5], np.float32)  # 50 steps at 1 + √2 times the push, over 1 - 0.9
        self.observation_space = Box(-bound, bound, dtype=np.float32)
        self.action_space = Box(-1.0, 1.0, (4,), np.float32)

    def begin(self) -> None:
        self.position = self.np_random.uniform(-1.0, 1.0, 2)
        self.velocity = np.zeros(2)

    def act(self, action: Array) -> tuple[float, bool]:
        thrust = np.clip(action, -1.0, 1.0).astype(np.float64)
        self.velocity = self.keep * self.velocity + self.push * (DIRECTIONS @ thrust)
        self.position = self.position + self.velocity
        return -float(self.position @ self.position) - self.fuel * float(thrust @ thrust), False

    def observe(self) -> Array:
        return np.concatenate((self.position, self.velocity)).astype(np.float32)

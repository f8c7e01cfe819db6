"""A toy that is seen as pictures; import it from `rlrun.env.toys`."""

from typing import Any

import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.spaces import Box, Discrete

from rlrun.core.typing import Array
from rlrun.env.toy_spaces import Toy

SIDE = 42
ROWS, COLUMNS = np.mgrid[:SIDE, :SIDE].astype(np.float32)
FLOOR, CENTER = 36.0, 20.5  # row and column of the cart where the track has its middle
SCALE, POLE = 8.0, 30.0  # pixels of a unit of the track, and of the pole


class CartPolePixels(Toy):
    """Balance a pole on a cart that is seen in a picture: the physics of CartPole-v1.

    observation: uint8 [42, 42], brighter where cart and pole are; action: 0 pushes left, 1 right. reward: 1 a step.
    Terminated beyond 12 degrees or 2.4 units from the middle, truncated after 500 steps.

    Answer: pushing to the side that the pole falls to, by angle and its velocity, has the return 500, against 22 at
    random. Velocities need successive pictures, such as those of `rlrun.env.wrappers.FrameStack`.
    """

    steps = 500

    def __init__(self) -> None:
        self.cart: Any = CartPoleEnv()
        self.observation_space = Box(0, 255, (SIDE, SIDE), np.uint8)
        self.action_space = Discrete(2)

    def begin(self) -> None:
        self.cart.state, self.cart.steps_beyond_terminated = self.np_random.uniform(-0.05, 0.05, 4), None

    def act(self, action: Any) -> tuple[float, bool]:
        _, reward, terminated, *_ = self.cart.step(int(action))
        return float(reward), terminated

    def observe(self) -> Array:
        position, _, angle, _ = self.cart.state
        right, up = COLUMNS - np.float32(CENTER + SCALE * position), FLOOR - ROWS  # from the cart's middle
        along, across = np.float32(np.sin(angle)), np.float32(np.cos(angle))
        beyond = right * along + up * across
        beyond -= beyond.clip(0.0, POLE)  # of the pole's ends
        pole = 1.5 - np.maximum(abs(right * across - up * along), abs(beyond))
        cart = np.minimum(4.5 - abs(right), 2.5 - abs(up))
        image: Array = (255.0 * np.maximum(pole, cart).clip(0.0, 1.0)).astype(np.uint8)
        return image

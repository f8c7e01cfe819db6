"""Toys that are seen as pictures."""

import math
from typing import Any

import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.spaces import Box, Discrete

from rlrun.core.typing import Array
from rlrun.env import sprites
from rlrun.env.toys.toy import Toy

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


class Reacher(Toy):
    """Bring the end of an arm of two links to a target and keep it there.

    observation: [8]: cosine and sine of both angles, change of both, row and column of the target from the shoulder;
    action: [2] in [-1, 1], what adds to the change of the angles. An angle counts from the link before. Both links
    have the length 0.5. reward: minus the distance between end and target. Truncated after 50 steps.

    Answer: angles by inverse kinematics, and a controller that damps, have the return -3.5 on average. Random actions
    have -41, and doing nothing -42.
    """

    steps = 50
    link, gain, keep = 0.5, 0.1, 0.7  # length; change of an angle by a full action; share of its change that lasts
    nearest, farthest = 0.2, 0.9  # of the target from the shoulder

    def __init__(self) -> None:
        self.observation_space = Box(-math.inf, math.inf, (8,))
        self.action_space = Box(-1.0, 1.0, (2,))

    def begin(self) -> None:
        self.angles, self.change = self.np_random.uniform(-math.pi, math.pi, 2), np.zeros(2)
        distance, angle = self.np_random.uniform(self.nearest, self.farthest), self.np_random.uniform(-math.pi, math.pi)
        self.target = distance * np.array([math.sin(angle), math.cos(angle)])

    def act(self, action: Any) -> tuple[float, bool]:
        self.change = self.keep * self.change + self.gain * np.clip(action, -1.0, 1.0)
        self.angles = self.angles + self.change
        return -float(np.linalg.norm(self.joints()[1] - self.target)), False

    def joints(self) -> Array:
        """Return row and column of elbow and end from the shoulder: [2, 2]."""
        angles = np.cumsum(self.angles)
        return np.cumsum(self.link * np.stack((np.sin(angles), np.cos(angles)), 1), 0)

    def observe(self) -> Array:
        parts = (np.cos(self.angles), np.sin(self.angles), self.change, self.target)
        return np.concatenate(parts).astype(np.float32)


class ReacherPixels(Reacher):
    """`Reacher` seen in a picture: uint8 [42, 42, 3], the links red and green, the target blue.

    Changes of the angles need successive pictures, such as those of `rlrun.env.wrappers.FrameStack`.
    """

    middle, scale = 20.5, 19.0  # row and column of the shoulder; pixels of a unit

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = Box(0, 255, (SIDE, SIDE, 3), np.uint8)

    def observe(self) -> Array:
        places = np.stack((np.zeros(2), *self.joints(), self.target, self.target))
        places = (self.middle + self.scale * places).astype(np.float32)
        image = np.empty((SIDE, SIDE, 3), np.float32)
        for channel, (first, width) in enumerate(((0, 2.0), (1, 2.0), (3, 3.5))):  # a line from one place to the next
            begin, line = places[first], places[first + 1] - places[first]
            down, right = ROWS - begin[0], COLUMNS - begin[1]
            share = ((down * line[0] + right * line[1]) / max(line @ line, 1.0)).clip(0.0, 1.0)
            image[..., channel] = (width - np.hypot(down - share * line[0], right - share * line[1])).clip(0.0, 1.0)
        picture: Array = (255.0 * image).astype(np.uint8)
        return picture


class Sprites(Toy):
    """Move a sprite to another one, as a picture shows them; `held_out.sprites` of the memory are the same.

    observation: uint8 [32, 32, 3]; action: [2] in [-1, 1], change of row and column in pixels, by 1 at most. The sprite
    in front moves, and no further than the edge. reward: minus the distance of the centers, as a share of the largest
    that there can be. Truncated after 50 steps.

    Answer: moving by the difference of the centers, clipped, has the return -2.0, against -18.8 at random, as means.
    """

    steps = 50
    largest = float(np.hypot(1.0, 1.0) * (sprites.LARGEST - sprites.LEAST))

    def __init__(self) -> None:
        self.observation_space = Box(0, 255, (sprites.SIDE, sprites.SIDE, 3), np.uint8)
        self.action_space = Box(-1.0, 1.0, (2,), np.float32)

    def begin(self) -> None:
        self.centers, self.shapes, self.colors = sprites.placed(self.np_random)

    def act(self, action: Array) -> tuple[float, bool]:
        moved = self.centers[1] + np.clip(action, -1.0, 1.0)
        self.centers[1] = moved.clip(sprites.LEAST, sprites.LARGEST)
        return -float(np.hypot(*(self.centers[1] - self.centers[0]))) / self.largest, False

    def observe(self) -> Array:
        return sprites.drawn(self.centers, self.shapes, self.colors)[0]

"""Handcrafted policies, for comparisons and demonstrations.

`conf/algorithm/handcrafted.yaml` acts by one of them, or by a class of your own, whose
`act(observation, explore)` returns policy actions for trees of tensors [N, …].
"""

import math

import torch
from torch import Tensor

from rlrun.core.errors import SpaceError
from rlrun.core.spaces import Box, Spaces, describe
from rlrun.core.typing import Tree
from rlrun.env.toys.control import DIRECTIONS
from rlrun.ops import normal_like


class SwingUp:
    """A controller of Gymnasium's Pendulum: swing up by energy, then balance.

    While swinging, the torque follows the speed if energy is missing, and opposes it if there is too much
    (Åström and Furuta 2000, doi 10.1016/S0005-1098(99)00140-5, eq. 8); near the top it is proportional to angle
    and speed. Returns are about -145.
    """

    torque = 2.0  # of the environment, at most
    gravity = 15.0  # 3 g / 2 l; energies are those of a pendulum with inertia 1
    pump = 0.3  # torque for each unit of speed and missing energy
    stiffness = 12.0  # torque for each radian, near the top
    damping = 3.0  # torque for each radian a second, there
    catch = 0.7  # height (cosine of the angle) above which it balances

    def act(self, observation: Tensor, explore: bool = False) -> Tensor:
        height, side, speed = observation.unbind(-1)
        missing = self.gravity * (1.0 - height) - 0.5 * speed.square()
        swing = self.pump * missing * speed
        hold = -self.stiffness * torch.atan2(side, height) - self.damping * speed
        torque = torch.where(height > self.catch, hold, swing)
        return (torque / self.torque).clamp(-1.0, 1.0).unsqueeze(-1)


class Balance:
    """A controller of Gymnasium's CartPole: push by the sign of a weighted sum of position, angle and their speeds."""

    weights = torch.tensor((0.5, 1.0, 10.0, 3.0))

    def act(self, observation: Tensor, explore: bool = False) -> Tensor:
        return (observation @ self.weights.to(observation) > 0.0).long()


class Thrust:
    """A linear quadratic regulator of `rlrun.env.toys.Thrusters`, with the smallest thrusts for its force.

    Exploration adds normal noise to the force, so that demonstrations have forces of all directions.
    """

    stiffness, damping = 2.29, 9.66  # force for each unit of position and velocity
    noise = 0.5  # standard deviation of each number

    def act(self, observation: Tensor, explore: bool = False) -> Tensor:
        force = -self.stiffness * observation[:, :2] - self.damping * observation[:, 2:]
        if explore:
            force = force + self.noise * normal_like(force)
        return (0.5 * force @ torch.from_numpy(DIRECTIONS).to(force)).clamp(-1.0, 1.0)


class WaypointFollow:
    """A controller of a car: steer for the second waypoint, slow down before the goal, stop at it.

    observation: {"goal": [N, 2 or more], "navigation": [N, waypoints, 2 or more]}, metres ahead of the car and to
    its left; action: [3], speed and steer as shares of the largest, and reverse, which stays 0.

    Args:
        spaces: of the environment.
        decelerate: distance to the goal, in metres, below which the speed is proportional to it.
        stop: distance below which the speed is 0.

    Raises:
        SpaceError: the action space differs.
    """

    def __init__(self, spaces: Spaces, *, decelerate: float = 50.0, stop: float = 1.0) -> None:
        box = spaces.action
        if not isinstance(box, Box) or box.shape != (3,) or not box.bounded:
            raise SpaceError(f"WaypointFollow gives [speed, steer, reverse] within bounds, not {describe(box)}")
        self.low, self.range = torch.from_numpy(box.low).float(), torch.from_numpy(box.high - box.low).float()
        self.decelerate = decelerate
        self.stop = stop

    def drive(self, observation: Tree) -> Tensor:
        """Return speed in [0, 1], steer in [-1, 1] and reverse [N, 3]."""
        waypoints = observation["navigation"]
        ahead, left = waypoints[:, min(1, waypoints.shape[1] - 1), :2].unbind(-1)
        distance = observation["goal"][:, :2].norm(dim=-1)
        speed = (distance / self.decelerate).clamp(max=1.0) * (distance > self.stop)
        return torch.stack((speed, torch.atan2(left, ahead) / math.pi, torch.zeros_like(speed)), -1)

    def act(self, observation: Tree, explore: bool = False) -> Tensor:
        action = self.drive(observation)
        return 2.0 * (action - self.low.to(action)) / self.range.to(action) - 1.0

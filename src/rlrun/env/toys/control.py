"""Toys of numbers as actions: balls, points, oars, thrusters, a car and a pole."""

import math

import numpy as np
from gymnasium.spaces import Box, Dict

from rlrun.core.typing import Array
from rlrun.env.toys.toy import Toy

ANGLES = [index * math.pi / 4.0 for index in range(4)]
DIRECTIONS = np.array([[math.cos(angle) for angle in ANGLES], [math.sin(angle) for angle in ANGLES]])  # of `Thrusters`


class HitTheMiddle(Toy):
    """Push a ball on a line to the middle and keep it there.

    observation: [position in [-10, 10], velocity]; action: [1] change of velocity in [-1, 1]. Walls at ±10
    reverse the velocity. reward = -position². Episodes are truncated after 31 steps.

    Answer: the best return is -38.4 on average (value iteration on a fine grid); pushing with
    -0.5 * position - 0.8 * velocity, clipped, has -39.7. Doing nothing has -1054, random pushes -1134.
    """

    steps = 31
    wall = 10.0

    def __init__(self) -> None:
        bound = np.array([self.wall, 32.0], np.float32)  # 0.25 + 31 steps of 1
        self.observation_space = Box(-bound, bound, dtype=np.float32)
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)

    def begin(self) -> None:
        self.position = float(self.np_random.uniform(-10.0, 10.0))
        self.velocity = float(self.np_random.uniform(-0.25, 0.25))

    def act(self, action: Array) -> tuple[float, bool]:
        self.velocity += min(max(float(action[0]), -1.0), 1.0)
        self.position += self.velocity
        if abs(self.position) > self.wall:
            self.position = self.wall if self.position > 0 else -self.wall
            self.velocity = -self.velocity
        return -(self.position**2), False

    def observe(self) -> Array:
        return np.array([self.position, self.velocity], np.float32)


class PointMass(Toy):
    """Move a point in a square for 30 steps; all rewards are 0.

    observation: position [2] in [-1, 1]; action: [2] in [-1, 1]; a step moves by a tenth of it, up to the walls.
    Episodes begin near the middle and are truncated.

    Answer: every return is 0. If K skills go to different places, for example K = 4 to the corners, the nearest corner
    identifies the skill after the first steps.
    """

    steps = 30

    def __init__(self) -> None:
        self.observation_space = Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = Box(-1.0, 1.0, (2,), np.float32)

    def begin(self) -> None:
        self.position = self.np_random.uniform(-0.05, 0.05, 2).astype(np.float32)

    def act(self, action: Array) -> tuple[float, bool]:
        self.position = np.clip(self.position + np.float32(0.1) * np.clip(action, -1.0, 1.0), -1.0, 1.0)
        return 0.0, False

    def observe(self) -> Array:
        return self.position.copy()


class Oars(Toy):
    """Row forward and turn by two oars, of which one costs more: a lopsided task for a symmetric body.

    observation: [forward in [0.2, 0.5], turn in [-0.2, 0.2]]; action: [right r, left l] in [-1, 1]. reward:
    -(r + l - 2 forward)² - 0.1 (r - l - 2 turn)² - effort · l². Every episode terminates after one step.

    In the mirror the turn has the other sign, and the oars are exchanged.

    Answer: the right oar does most. At (0.35, 0) it is best to pull (0.59, 0.05); the best symmetric policy pulls
    (0.23, 0.23) there.
    """

    def __init__(self, effort: float = 2.0) -> None:
        self.effort = effort
        self.observation_space = Box(np.array([0.2, -0.2], np.float32), np.array([0.5, 0.2], np.float32))
        self.action_space = Box(-1.0, 1.0, (2,), np.float32)

    def begin(self) -> None:
        self.wanted = self.np_random.uniform([0.2, -0.2], [0.5, 0.2])

    def act(self, action: Array) -> tuple[float, bool]:
        right, left = np.clip(action, -1.0, 1.0).tolist()
        forward, turn = self.wanted.tolist()
        missed = (right + left - 2.0 * forward) ** 2 + 0.1 * (right - left - 2.0 * turn) ** 2
        return -missed - self.effort * left**2, True

    def observe(self) -> Array:
        return self.wanted.astype(np.float32)


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


class Road(Toy):
    """Drive a car along waypoints, ten metres apart on a quarter of a circle, to the goal at their end.

    observation: {"goal": [2], "navigation": [2, 2]}: the goal and the next two waypoints, in metres ahead of the
    car and to its left; action: [3]: speed in [0, 1] of 5 m a step; steer in [-1, 1] of half a turn, clipped to 0.5 rad
    a step; reverse, above 0.5 backwards. reward: decrease of the distance to the goal in metres.
    Terminated within 1 m of the goal, truncated after 100 steps. The bend goes to either side.

    Answer: reaching the goal gives a return of 89.5 to 90.5 (a radius of 64 m), on any path.
    """

    steps, radius = 100, 64.0

    def __init__(self) -> None:
        far = 4.0 * self.radius + 5.0 * self.steps
        self.observation_space = Dict(
            {"goal": Box(-far, far, (2,), np.float32), "navigation": Box(-far, far, (2, 2), np.float32)}
        )
        self.action_space = Box(np.array([0.0, -1.0, 0.0], np.float32), np.ones(3, np.float32))

    def begin(self) -> None:
        angle = np.arange(1, 11) * math.pi / 20.0
        side = self.np_random.choice((-1.0, 1.0))
        self.waypoints = self.radius * np.stack((np.sin(angle), side * (1.0 - np.cos(angle))), -1)
        self.position = np.zeros(2)
        self.heading = float(self.np_random.uniform(-0.5, 0.5))
        self.next = 0

    def act(self, action: Array) -> tuple[float, bool]:
        before = self._distance(-1)
        speed, steer, reverse = (float(part) for part in action)
        self.heading += min(max(math.pi * steer, -0.5), 0.5)
        distance = 5.0 * speed * (-1.0 if reverse > 0.5 else 1.0)
        self.position = self.position + distance * np.array([math.cos(self.heading), math.sin(self.heading)])
        while self.next < len(self.waypoints) - 1 and self._distance(self.next) < 5.0:
            self.next += 1
        after = self._distance(-1)
        return before - after, after < 1.0

    def _distance(self, waypoint: int) -> float:
        return float(np.linalg.norm(self.waypoints[waypoint] - self.position))

    def observe(self) -> dict[str, Array]:
        last = len(self.waypoints) - 1
        chosen = self.waypoints[[last, self.next, min(self.next + 1, last)]] - self.position
        cos, sin = math.cos(self.heading), math.sin(self.heading)
        relative = (chosen @ np.array([[cos, -sin], [sin, cos]])).astype(np.float32)
        return {"goal": relative[0], "navigation": relative[1:]}


class CartPoleContinuous(Toy):
    """Balance a pole on a cart by a force: Gymnasium's CartPole with action [1] in [-1, 1], times 10 N (mbrl-lib).

    observation: position, velocity, angle, angular velocity. reward: 1 until the cart is 2.4 away or the pole 12
    degrees from upright. Episodes are truncated after 200 steps.

    Answer: 200. A force of sign(angle + angular velocity) reaches it; random forces have about 25.
    """

    steps = 200
    gravity, cart, pole, half_length, force, seconds = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
    away, tilted = 2.4, math.radians(12.0)

    def __init__(self) -> None:
        bound = np.array([2.0 * self.away, math.inf, 2.0 * self.tilted, math.inf], np.float32)
        self.observation_space = Box(-bound, bound, dtype=np.float32)
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)

    def begin(self) -> None:
        self.state = self.np_random.uniform(-0.05, 0.05, 4)

    def act(self, action: Array) -> tuple[float, bool]:
        _, velocity, angle, spin = self.state
        sine, cosine = math.sin(angle), math.cos(angle)
        force = self.force * min(max(float(action[0]), -1.0), 1.0)
        mass, arm = self.cart + self.pole, self.pole * self.half_length
        push = (force + arm * spin**2 * sine) / mass
        turn = (self.gravity * sine - cosine * push) / (self.half_length * (4.0 / 3.0 - self.pole * cosine**2 / mass))
        moved = push - arm * turn * cosine / mass
        self.state = self.state + self.seconds * np.array([velocity, moved, spin, turn])
        fallen = bool(abs(self.state[0]) > self.away or abs(self.state[2]) > self.tilted)
        return 0.0 if fallen else 1.0, fallen

    def observe(self) -> Array:
        return self.state.astype(np.float32)

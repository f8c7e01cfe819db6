"""Small environments with known answers, in numpy alone: `env.target=rlrun.env.toys.HitTheMiddle`.

Each docstring states the answer that a correct algorithm finds.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from rlrun.core.errors import ConfigError
from rlrun.core.typing import Array
from rlrun.env.toy_games import ConnectFour, RiskyBranch, TicTacToe
from rlrun.env.toy_pixels import CartPolePixels, Reacher, ReacherPixels, Sprites
from rlrun.env.toy_spaces import (
    DictObservation,
    DiscreteStart,
    ImageObservation,
    MaskedChain,
    MixedAction,
    MultiDiscreteAction,
    Thrusters,
    Toy,
    TupleSpaces,
)

__all__ = [
    "Bandit",
    "CartPoleContinuous",
    "CartPolePixels",
    "Chain",
    "ConnectFour",
    "ConstrainedBandit",
    "Corridor",
    "DictObservation",
    "DiscreteStart",
    "HitTheMiddle",
    "ImageObservation",
    "MaskedChain",
    "MixedAction",
    "MultiDiscreteAction",
    "Oars",
    "PointMass",
    "Reacher",
    "ReacherPixels",
    "Recall",
    "RiskyBranch",
    "Road",
    "Sprites",
    "TMaze",
    "Thrusters",
    "TicTacToe",
    "TupleSpaces",
]


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


class Bandit(Toy):
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

    def act(self, action: Any) -> tuple[float, bool]:
        reward = self.means[int(action)]
        if self.noise:
            reward += self.noise * float(self.np_random.standard_normal())
        return reward, True

    def observe(self) -> Array:
        return np.ones(1, np.float32)


class ConstrainedBandit(Toy):
    """Choose a number, once: actions with a high reward also have a high cost.

    observation: [1], always one; action: a in [-1, 1]; reward: [-(a - 1)², -(1 + a) / 2], the second the cost. Every
    episode terminates after one step.

    cliff: where given, the cost is 1 for actions above it and 0 for others.
    form: "rewards", or "info": the reward is a plain number, and the cost is `cost` in the info of the step.

    Answer: with weights (1, w) the best action is 1 - w / 4. With a limit c of the mean cost it is 2c - 1. This is the
    best one for the weights (1, 8 (1 - c)). For c = 0.25 the action is -0.5, and the normalized weights are (1/7, 6/7).
    With a cliff the best action without cost is the cliff itself.
    """

    def __init__(self, form: Literal["rewards", "info"] = "rewards", cliff: float | None = None) -> None:
        if form not in ("rewards", "info"):
            raise ConfigError(f"env.kwargs.form: wanted rewards or info, got '{form}'")
        self.form, self.cliff = form, cliff
        self.observation_space = Box(0.0, 1.0, (1,), np.float32)
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)
        if form == "rewards":
            self.reward_space = Box(np.array([-4.0, -1.0], np.float32), np.zeros(2, np.float32))

    def act(self, action: Array) -> tuple[Any, bool]:
        chosen = float(action[0])
        self.cost = (1.0 + chosen) / 2.0 if self.cliff is None else float(chosen > self.cliff)
        pay = -((chosen - 1.0) ** 2)
        return pay if self.form == "info" else np.array([pay, -self.cost], np.float32), True

    def observe(self) -> Array:
        return np.ones(1, np.float32)

    def info(self) -> dict[str, Any]:
        return {"cost": self.cost} if self.form == "info" else {}


class Chain(Toy):
    """Walk round a ring of `length` states, reward 1 a step, whatever the action; one round is one episode.

    observation: the state, one-hot [length]. Every episode starts in state 0. Its last observation is state 0 again, so
    a truncated episode ends in a state that has a value.

    Answer: with discount g, state k has the value (1 - g^(length - k)) / (1 - g) if episodes end by `terminated`. If
    they end by `truncated`, every state has the value 1 / (1 - g). Both actions have equal values.
    """

    def __init__(
        self,
        length: int = 5,
        *,
        ending: Literal["terminated", "truncated"] = "terminated",
        continuous: bool = False,
    ) -> None:
        if ending not in ("terminated", "truncated"):
            raise ConfigError(f"env.kwargs.ending is 'terminated' or 'truncated', got {ending!r}")
        self.length = self.steps = length
        self.terminates = ending == "terminated"
        self.observation_space = Box(0.0, 1.0, (length,), np.float32)
        self.action_space = Box(-1.0, 1.0, (1,), np.float32) if continuous else Discrete(2)

    def begin(self) -> None:
        self.state = 0

    def act(self, action: Any) -> tuple[float, bool]:
        self.state = (self.state + 1) % self.length
        return 1.0, self.terminates and self.state == 0

    def value(self, state: int, discount: float) -> float:
        """Return the true value of a state."""
        end_discount = discount ** (self.length - state) if self.terminates else 0.0
        return (1.0 - end_discount) / (1.0 - discount)

    def observe(self) -> Array:
        observation = np.zeros(self.length, np.float32)
        observation[self.state] = 1.0
        return observation


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


class Corridor(Toy):
    """Find the way to the end of a corridor of `length` cells; earlier rewards are 0.

    observation: the cell, one-hot [length]; action: 0 or 1; one moves a cell forward, the other one a cell back (in
    the first cell: not at all). Which one moves forward differs from cell to cell, and is the same in every episode.
    Leaving the last cell gives reward 1 and terminates; episodes are truncated after twice `length` steps.

    Answer: return 1 after `length` steps. At random one in 7,656 episodes gets there.
    """

    def __init__(self, length: int = 30) -> None:
        if length < 2:
            raise ConfigError(f"env.kwargs.length must be at least 2, not {length}")
        self.length, self.steps = length, 2 * length
        self.onward = np.random.default_rng(0).integers(0, 2, length)  # the action that leads on
        self.observation_space = Box(0.0, 1.0, (length,), np.float32)
        self.action_space = Discrete(2)

    def begin(self) -> None:
        self.cell = 0

    def act(self, action: Any) -> tuple[float, bool]:
        self.cell = self.cell + 1 if int(action) == self.onward[self.cell] else max(self.cell - 1, 0)
        return float(self.cell == self.length), self.cell == self.length

    def observe(self) -> Array:
        observation = np.zeros(self.length, np.float32)
        observation[self.cell : self.cell + 1] = 1.0  # all zeros beyond the last cell
        return observation


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

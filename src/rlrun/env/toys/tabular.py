"""Toys of few states, whose values are known by a formula: bandits, chains, a choice between branches."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from gymnasium.spaces import Box, Discrete

from rlrun.core.errors import ConfigError
from rlrun.core.typing import Array
from rlrun.env.toys.toy import Toy


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


class RiskyBranch(Toy):
    """Choose a safe branch, or a risky one that leads to either of two states, each with a right action of its own.

    observation: the state, one-hot [4]; action: 0 or 1. From state 0 action 0 leads to state 1 or state 3, each with
    probability 1/2, and action 1 to state 2. Rewards: 2 for action 0 in state 1, 1.8 for action 0 in state 2, 1 for
    action 1 in state 3, else 0. The second step terminates.

    Answer: action 1, then 0: return 1.8. The risky branch has 1.5 at best. A model without chance takes it, as it
    imagines state 1 with its 2 for one of the actions. Random actions have 0.825.
    """

    rewards = ((0.0, 0.0), (2.0, 0.0), (1.8, 0.0), (0.0, 1.0))

    def __init__(self) -> None:
        self.observation_space = Box(0.0, 1.0, (4,), np.float32)
        self.action_space = Discrete(2)

    def begin(self) -> None:
        self.state = 0

    def act(self, action: Any) -> tuple[float, bool]:
        reward, over = self.rewards[self.state][int(action)], self.state > 0
        if not over:
            self.state = 2 if int(action) else int(self.np_random.choice((1, 3)))
        return reward, over

    def observe(self) -> Array:
        observation = np.zeros(4, np.float32)
        observation[self.state] = 1.0
        return observation

"""One task for each kind of space."""

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from rlrun.core.typing import Array
from rlrun.env.toys.toy import Info, Quiz, Toy


class DictObservation(Quiz):
    """Compare one number of a vector with zero.

    observation: {"level": [2] in [-1, 1], "side": 0 or 1}; action: 0 or 1.
    Answer: 1 where level[side] > 0, else 0; return 10, against 5 at random.
    """

    def __init__(self) -> None:
        self.observation_space = Dict({"level": Box(-1.0, 1.0, (2,), np.float32), "side": Discrete(2)})
        self.action_space = Discrete(2)

    def ask(self) -> dict[str, Any]:
        return {
            "level": self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32),
            "side": self.np_random.integers(2),
        }

    def mark(self, action: Any) -> float:
        return int(action) == int(self.observation["level"][self.observation["side"]] > 0.0)


class ImageObservation(Quiz):
    """Find the bright half of a noisy picture.

    observation: uint8 [16, 16, 1]; action: 0 left, 1 right.
    Answer: the half with the larger mean; return 10, against 5 at random.
    """

    def __init__(self) -> None:
        self.observation_space = Box(0, 255, (16, 16, 1), np.uint8)
        self.action_space = Discrete(2)

    def ask(self) -> Array:
        self.bright = int(self.np_random.integers(2))
        image = self.np_random.integers(0, 100, (16, 16, 1), dtype=np.uint8)
        image[:, slice(8, 16) if self.bright else slice(0, 8)] += 120
        return image

    def mark(self, action: Any) -> float:
        return int(action) == self.bright


class MultiDiscreteAction(Quiz):
    """Answer three questions at once.

    observation: [3] in [0, 1]; action: MultiDiscrete [2, 3, 4].
    Answer: floor(observation * [2, 3, 4]); each part right gives a third: return 10, against
    10 * (1/2 + 1/3 + 1/4) / 3 = 3.61 at random.
    """

    choices = np.array([2, 3, 4])

    def __init__(self) -> None:
        self.observation_space = Box(0.0, 1.0, (3,), np.float32)
        self.action_space = MultiDiscrete(self.choices)

    def ask(self) -> Array:
        return self.np_random.random(3, dtype=np.float32)

    def mark(self, action: Any) -> float:
        right = np.minimum((self.observation * self.choices).astype(np.int64), self.choices - 1)
        return float((np.asarray(action) == right).mean())


class MixedAction(Quiz):
    """Name a number's half and repeat the number: a discrete and a continuous action at once.

    observation: [1] x in [0, 1); action: {"choice": 0 or 1, "level": [1] in [0, 1]};
    reward = 1 - |level - x| where choice says whether x > 0.5, else 0.

    Answer: choice = (x > 0.5), level = x; reward 1 a step, return 10. Uniform random actions have a return
    of 10 * 1/2 * (1 - 1/3) = 3.33 on average.
    """

    def __init__(self) -> None:
        self.observation_space = Box(0.0, 1.0, (1,), np.float32)
        self.action_space = Dict({"choice": Discrete(2), "level": Box(0.0, 1.0, (1,), np.float32)})

    def ask(self) -> Array:
        return self.np_random.random(1, dtype=np.float32)

    def mark(self, action: dict[str, Any]) -> float:
        x = float(self.observation[0])
        right = int(action["choice"]) == int(x > 0.5)
        return 1.0 - abs(float(action["level"][0]) - x) if right else 0.0


class MaskedChain(Toy):
    """Walk along 12 states by 20 actions, of which 3 are allowed: one advances, one stays, one goes back.

    observation: {"observation": the state, "action_mask": [20] which actions are allowed}; they change with the state.
    Another action costs 1 and stays. Reaching the last state pays 10 and terminates; episodes are truncated after 100
    steps.

    masked: without it the observation is the state alone. The info has the mask in either case.

    Answer: advance 11 times, return 10. Allowed actions at random reach the end in a third of the episodes; any of
    the 20 at random have a return of -85.
    """

    steps = 100
    states, actions = 12, 20

    def __init__(self, masked: bool = True) -> None:
        self.masked = masked
        state, action_mask = Discrete(self.states), MultiBinary(self.actions)
        self.observation_space = Dict({"observation": state, "action_mask": action_mask}) if masked else state
        self.action_space = Discrete(self.actions)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        return super().reset(seed=seed, options=options)[0], self.info()

    def begin(self) -> None:
        self.state = 0

    def allowed(self) -> list[int]:
        """Return the actions that advance, stay and go back."""
        return [(7 * self.state + offset) % self.actions for offset in (3, 10, 17)]

    def act(self, action: Any) -> tuple[float, bool]:
        allowed = self.allowed()
        if int(action) not in allowed:
            return -1.0, False
        self.state = max(self.state + 1 - allowed.index(int(action)), 0)
        over = self.state == self.states - 1
        return 10.0 * over, over

    def observe(self) -> Any:
        return {"observation": self.state, **self.info()} if self.masked else self.state

    def info(self) -> Info:
        action_mask = np.zeros(self.actions, np.int8)
        action_mask[self.allowed()] = 1
        return {"action_mask": action_mask}


class TupleSpaces(Quiz):
    """Repeat both parts of the observation.

    observation: (Discrete 3, MultiBinary 2); action: (Discrete 3, Box [2] in [0, 1]).
    Answer: the same number, and the same bits as 0.0 and 1.0. Each part gives half the reward, the second one less with
    the distance: return 10, against 10 * (1/2 * 1/3 + 1/2 * 1/2) = 4.17 at random.
    """

    def __init__(self) -> None:
        self.observation_space = Tuple((Discrete(3), MultiBinary(2)))
        self.action_space = Tuple((Discrete(3), Box(0.0, 1.0, (2,), np.float32)))

    def ask(self) -> tuple[Any, Array]:
        return self.np_random.integers(3), self.np_random.integers(0, 2, 2, dtype=np.int8)

    def mark(self, action: Any) -> float:
        number, bits = self.observation
        distance = float(np.abs(np.asarray(action[1]) - bits).mean())
        return 0.5 * float(int(action[0]) == number) + 0.5 * (1.0 - distance)


class DiscreteStart(Quiz):
    """Repeat a number where counting starts at 3.

    observation: Discrete(4, start=-1); action: Discrete(4, start=3).
    Answer: action = observation + 4; return 10, against 2.5 at random.
    """

    def __init__(self) -> None:
        self.observation_space = Discrete(4, start=-1)
        self.action_space = Discrete(4, start=3)

    def ask(self) -> Any:
        return self.np_random.integers(-1, 3)

    def mark(self, action: Any) -> float:
        return int(action) == int(self.observation) + 4

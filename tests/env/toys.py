"""Toys of further kinds of spaces, as those of `rlrun.env.toy_spaces`: right answers have a return of 10."""

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Tuple

from rlrun.core.typing import Array
from rlrun.env.toy_spaces import Quiz
from rlrun.env.toys import DictObservation, ImageObservation, MixedAction, Recall  # noqa: F401 - for tests of all


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


FURTHER = (MultiDiscreteAction, TupleSpaces, DiscreteStart)

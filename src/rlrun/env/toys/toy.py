"""The base classes of toys.

In a `Quiz` each step is an independently drawn question; the right action has reward 1. After `steps` of them the
episode is truncated. So a perfect policy has the return `steps` (10), and needs no discount.
"""

import math
from abc import abstractmethod
from typing import Any

import gymnasium

Info = dict[str, Any]


class Toy(gymnasium.Env[Any, Any]):
    """A small task; an episode that does not terminate is cut off (truncated) after `steps`."""

    steps: float = math.inf
    step_number = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self.step_number = 0
        self.begin()
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Info]:
        self.step_number += 1
        reward, terminated = self.act(action)
        truncated = self.step_number >= self.steps and not terminated
        return self.observe(), reward, terminated, truncated, self.info()

    def begin(self) -> None:
        """Draw the first state of an episode."""

    @abstractmethod
    def act(self, action: Any) -> tuple[Any, bool]:
        """Return the reward of an action, and whether it terminates the episode."""

    @abstractmethod
    def observe(self) -> Any:
        """Return the next observation."""

    def info(self) -> Info:
        """Return the info of a step."""
        return {}


class Quiz(Toy):
    """Ask `steps` questions."""

    steps = 10
    observation: Any

    def observe(self) -> Any:
        self.observation = self.ask()
        return self.observation

    def act(self, action: Any) -> tuple[float, bool]:
        return float(self.mark(action)), False

    @abstractmethod
    def ask(self) -> Any:
        """Draw the next observation."""

    @abstractmethod
    def mark(self, action: Any) -> float:
        """Return how right an action is for the present observation, 0 to 1."""

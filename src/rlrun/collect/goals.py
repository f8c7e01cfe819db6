"""Goal generators: they learn the probabilities of later goals from finished episodes."""

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlrun.collect.statistics import NAMES, saved_numbers
from rlrun.core.errors import ConfigError, RlrunError
from rlrun.core.spaces import Composite, Discrete, Spaces, describe
from rlrun.core.typing import Array
from rlrun.training.callback import Callback

MOST = 8_000  # goals whose probabilities are recorded with the reset of an episode


class GoalGenerator(Callback, ABC):
    """The base of parts that learn the probabilities of K goals, which `rlrun.env.wrappers.RandomGoal` draws.

    The collector passes it the episodes of training as they end, and reads weights before the next ones begin. Each of
    several ranks learns from its own envs. A subclass is a callback: with hooks it may learn from batches, too, and its
    `state_dict` must hold all that it learned.

    Args:
        spaces: of the environment.
        name: part of the observation with the goal, a choice.

    Raises:
        ConfigError: there is no such part, or there are too many goals.
    """

    def __init__(self, spaces: Spaces, *, name: str = "goal") -> None:
        observation = spaces.observation
        space = observation.parts.get(name) if isinstance(observation, Composite) else None
        if not isinstance(space, Discrete):
            raise ConfigError(
                f"goal_generator: wanted a number of goals (goals=4), and observations with a choice '{name}'; "
                f"here they are {describe(observation)}"
            )
        if space.n > MOST:
            raise ConfigError(f"goal_generator: wanted at most {MOST:,} goals, got {space.n:,}")
        self.goals, self.part = space.n, name

    @abstractmethod
    def learn(self, goal: Array, episode_return: Array, length: Array) -> None:
        """Learn from complete episodes: goal, return and number of steps of each, [n]."""

    @abstractmethod
    def weights(self) -> Array:
        """Return the relative chance of each goal, [K]: not below 0, and not all 0."""

    def probabilities(self) -> Array:
        """Return the probability of each goal, [K].

        Raises:
            RlrunError: the weights are invalid.
        """
        weights = np.asarray(self.weights(), np.float64)
        total = float(weights.sum())
        if weights.shape != (self.goals,) or (weights < 0.0).any() or not 0.0 < total < math.inf:
            wanted = f"wanted {self.goals} weights of goals, finite, not below 0 and not all 0"
            raise RlrunError(f"{type(self).__name__}.weights: {wanted}; got {str(weights)[:200]}")
        return weights / total

    @property
    def metrics(self) -> Mapping[str, Any]:
        probabilities = self.probabilities()
        likely = probabilities[probabilities > 0.0]
        by_goal = {f"goal/probability_{goal}": float(share) for goal, share in enumerate(probabilities[:NAMES])}
        return {**super().metrics, "goal/entropy": -float(likely @ np.log(likely)), **by_goal}


def require_generator(generator: Any) -> GoalGenerator | None:
    """Return a generator of goals, or None; raise a ConfigError for other values."""
    if generator is not None and not isinstance(generator, GoalGenerator):
        raise ConfigError(f"collector.goal_generator: wanted a GoalGenerator, got a {type(generator).__name__}")
    return generator


class LearningProgress(GoalGenerator):
    """Favors the goals whose returns change most: goals that are neither mastered nor out of reach.

    The progress of a goal is the absolute slope, by least squares, of its newest returns (Matiisen et al. 2017, arXiv
    1707.00183, "window"); its probability is uniform / K + (1 - uniform) · progress / Σ progress, as in Portelas et al.
    2019, arXiv 1910.07224. A goal with fewer than two episodes has the largest progress of all.

    Args:
        spaces: of the environment.
        window: number of the newest episodes of each goal that count.
        uniform: share of goals that are drawn uniformly, so that forgotten and new abilities are noticed.
        name: part of the observation that is the goal.

    Raises:
        ConfigError: the window has fewer than two episodes, or `uniform` is outside [0, 1].
    """

    inherited = ("returns",)

    def __init__(self, spaces: Spaces, *, window: int = 20, uniform: float = 0.2, name: str = "goal") -> None:
        super().__init__(spaces, name=name)
        if window < 2 or not 0.0 <= uniform <= 1.0:
            raise ConfigError(f"goal_generator: wanted window >= 2 and uniform from 0 to 1, got {window} and {uniform}")
        self.uniform = uniform
        self.returns: list[deque[float]] = [deque(maxlen=window) for _ in range(self.goals)]

    def learn(self, goal: Array, episode_return: Array, length: Array) -> None:
        for number, value in zip(goal.tolist(), episode_return.tolist(), strict=True):
            self.returns[number].append(value)

    def weights(self) -> Array:
        progress = np.array([_slope(returns) if len(returns) > 1 else np.nan for returns in self.returns])
        known = progress[~np.isnan(progress)]
        progress[np.isnan(progress)] = known.max(initial=0.0) or 1.0
        total = float(progress.sum())
        share = progress / total if 0.0 < total < math.inf else np.full(self.goals, 1.0 / self.goals)
        weights: Array = self.uniform / self.goals + (1.0 - self.uniform) * share
        return weights

    @property
    def metrics(self) -> Mapping[str, Any]:
        newest = enumerate(self.returns[:NAMES])
        means = {f"goal/return_{goal}": float(np.mean(returns)) for goal, returns in newest if returns}
        return {**super().metrics, **means}

    def state_dict(self) -> dict[str, Any]:
        return {"returns": [list(returns) for returns in self.returns]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if len(state["returns"]) != self.goals:
            raise RlrunError(f"it has {len(state['returns'])} goals, and this run has {self.goals}")
        for returns, saved in zip(self.returns, state["returns"], strict=True):
            returns.clear()
            returns.extend(saved_numbers(saved))


def _slope(returns: deque[float]) -> float:
    """Return the absolute slope of returns over their numbers, by least squares."""
    times = np.arange(len(returns)) - (len(returns) - 1) / 2.0
    return abs(float(times @ np.array(returns)) / float(times @ times))

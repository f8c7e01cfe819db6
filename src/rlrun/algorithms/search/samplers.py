"""Samplers of actions, from the probabilities that a search returns."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from rlrun.algorithms.search.tree import pick, softmax
from rlrun.core.errors import ConfigError
from rlrun.core.typing import Array
from rlrun.ops.distributions import log_gamma_quantile


class ActionSampler(Protocol):
    """Draws actions; it may keep a memory of each environment."""

    def initial(self, count: int, actions: int) -> Array | None:
        """Return the memory of new episodes, an array [count, …], or None."""

    def __call__(self, probabilities: Array, memory: Any, rng: np.random.Generator) -> tuple[Array, Any]:
        """Return actions [N] drawn by probabilities [N, A], and the memory after them [N, …]."""


class Draw:
    """Draws from the probabilities."""

    def initial(self, count: int, actions: int) -> Array | None:
        return None

    def __call__(self, probabilities: Array, memory: Any, rng: np.random.Generator) -> tuple[Array, Any]:
        return pick(probabilities, rng.random(len(probabilities))), memory


@dataclass(frozen=True)
class BestOrDraw(Draw):
    """Takes the likeliest action; with probability `epsilon` draws from the probabilities.

    Raises:
        ConfigError: epsilon is not a probability.
    """

    epsilon: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon <= 1:
            raise ConfigError(f"epsilon: wanted a probability from 0 to 1, got {self.epsilon}")

    def __call__(self, probabilities: Array, memory: Any, rng: np.random.Generator) -> tuple[Array, Any]:
        drawn, _ = super().__call__(probabilities, memory, rng)
        return np.where(rng.random(len(drawn)) < self.epsilon, drawn, probabilities.argmax(1)), memory


@dataclass(frozen=True)
class PersistentDraw(Draw):
    """Draws from random probabilities that favor the same actions for many steps; their mean is the given ones.

    Each environment keeps uniform random numbers u [A]. From these and the probabilities p follow probabilities of a
    Dirichlet distribution: the shares of the u-quantiles of Gamma(c p, 1). Their mean is p.

    Args:
        concentration: c; the smaller, the nearer the probabilities come to a single action.
        renewal: probability of new random numbers in a step.

    Raises:
        ConfigError: a number is out of range.
    """

    concentration: float = 1.0
    renewal: float = 0.01

    def __post_init__(self) -> None:
        if not self.concentration > 0:
            raise ConfigError(f"concentration: wanted a number above 0, got {self.concentration}")
        if not 0 <= self.renewal <= 1:
            raise ConfigError(f"renewal: wanted a probability from 0 to 1, got {self.renewal}")

    def initial(self, count: int, actions: int) -> Array:
        return np.zeros((count, actions))

    def __call__(self, probabilities: Array, memory: Any, rng: np.random.Generator) -> tuple[Array, Any]:
        fresh = (rng.random(len(memory)) < self.renewal) | (memory == 0).all(1)
        memory = np.where(fresh[:, None], rng.random(memory.shape), memory)
        shape = torch.from_numpy(self.concentration * np.maximum(probabilities, 1e-30))
        quantile = log_gamma_quantile(shape, torch.from_numpy(memory)).numpy()
        weights = softmax(np.where(probabilities > 0, quantile, -np.inf))
        return super().__call__(weights, memory, rng)[0], memory

"""What spoils a run on purpose; the diagnosis shall find it from the run's files."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class TimeLimitTerminates(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Report a time limit as termination, as environments did before truncation had its own flag."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated or truncated, False, info


class Scaled(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Multiply rewards and observations by numbers."""

    def __init__(self, env: gymnasium.Env[Any, Any], reward: float = 1.0, observation: float = 1.0) -> None:
        super().__init__(env)
        self.factors = reward, observation
        box = env.observation_space
        if observation != 1.0 and isinstance(box, gymnasium.spaces.Box):
            self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, box.shape, np.float32)

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**options)
        return self._seen(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._seen(observation), self.factors[0] * float(reward), terminated, truncated, info

    def _seen(self, observation: Any) -> Any:
        return observation if self.factors[1] == 1.0 else (self.factors[1] * observation).astype(np.float32)


class Narrow(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Declare bounds of actions that are a small share of those that there are."""

    def __init__(self, env: gymnasium.Env[Any, Any], share: float) -> None:
        super().__init__(env)
        self.action_space = narrowed(env.action_space, share)


def narrowed(space: gymnasium.Space[Any], share: float) -> gymnasium.Space[Any]:
    """Return a space whose numbers end at a share of their bounds."""
    if isinstance(space, gymnasium.spaces.Dict):
        return gymnasium.spaces.Dict({name: narrowed(part, share) for name, part in space.items()})
    if isinstance(space, gymnasium.spaces.Box):
        return gymnasium.spaces.Box(share * space.low, share * space.high, space.shape, np.float32)
    return space

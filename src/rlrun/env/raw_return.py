"""The return as an environment pays it, beside that of wrappers that change its rewards."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import wrappers

from rlrun.env.spaces import rewards_of
from rlrun.env.wrapper_state import Layer, layers_of

RAW_RETURN = "raw_return"  # key in the info of each step
_KNOWN = ("gymnasium.", "rlrun.")  # packages whose wrappers with a `step` pay what the environment pays


class RawReturn(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Add the rewards of the open episode so far to the info of each step: `raw_return`."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.total = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.total = 0.0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.total += float(np.float32(reward))  # as all rewards are added up
        return observation, reward, terminated, truncated, {**info, RAW_RETURN: self.total}


def count_raw_return(env: Layer) -> None:
    """Put a `RawReturn` inside of the wrappers that may change rewards, if there are any."""
    changing = [layer for layer in layers_of(env) if _may_change_rewards(layer)]
    if changing and not rewards_of(changing[-1].env, "environment"):
        changing[-1].env = RawReturn(changing[-1].env)


def normalizes_rewards(env: Layer) -> bool:
    """Return True if Gymnasium's NormalizeReward, or a class derived from it, is around an environment."""
    return any(isinstance(layer, wrappers.NormalizeReward) for layer in layers_of(env))


def _may_change_rewards(layer: Layer) -> bool:
    if isinstance(layer, gymnasium.RewardWrapper | wrappers.NormalizeReward):
        return True
    if not isinstance(layer, gymnasium.Wrapper):
        return False
    owner = next(kind for kind in type(layer).__mro__ if "step" in vars(kind))
    return not f"{owner.__module__}.".startswith(_KNOWN)

"""The raw return: the environment's own rewards, before wrappers change them."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import wrappers
from gymnasium.vector import VectorRewardWrapper, VectorWrapper
from gymnasium.wrappers import vector

from rlrun.core.typing import Array
from rlrun.env.spaces import rewards_of
from rlrun.env.wrapper_state import Layer, layers_of

RAW_RETURN = "raw_return"  # key in the info of each step
NORMALIZERS = (wrappers.NormalizeReward, vector.NormalizeReward)
REWARD_WRAPPERS = (gymnasium.RewardWrapper, VectorRewardWrapper, *NORMALIZERS)
_KNOWN = ("gymnasium.", "rlrun.")  # packages whose other wrappers leave rewards unchanged


class RawReturn(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds the sum of the open episode's rewards to the info of each step: `raw_return`."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.total = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.total = 0.0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.total += float(np.float32(reward))  # like all other sums of rewards
        return observation, reward, terminated, truncated, {**info, RAW_RETURN: self.total}


class RawReturns(VectorWrapper[Any, Any, Any]):
    """`RawReturn` for a vector environment."""

    def __init__(self, env: gymnasium.vector.VectorEnv[Any, Any, Any]) -> None:
        super().__init__(env)
        self.totals: Array = np.zeros(env.num_envs)
        self._over: Array = np.ones(env.num_envs, np.bool_)  # episodes that the last step ended

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._over[(options or {}).get("reset_mask", slice(None))] = True
        return self.env.reset(seed=seed, options=options)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(actions)
        self.totals = np.where(self._over, 0.0, self.totals) + np.asarray(reward, np.float32)
        self._over = np.logical_or(terminated, truncated)
        info = {**info, RAW_RETURN: self.totals}
        if isinstance(
            final := info.get("final_info"), dict
        ):  # of an episode that ended, where envs reset within a step
            info["final_info"] = {**final, RAW_RETURN: self.totals}
        return observation, reward, terminated, truncated, info


def count_raw_return(env: Layer) -> None:
    """Insert a counter of the raw return below the wrappers that may change rewards, if there are any."""
    changing = [layer for layer in layers_of(env) if _may_change_rewards(layer)]
    if changing and not rewards_of(inner := changing[-1].env, "environment"):
        changing[-1].env = RawReturns(inner) if isinstance(inner, gymnasium.vector.VectorEnv) else RawReturn(inner)


def normalizes_rewards(env: Layer) -> bool:
    """Return True if a NormalizeReward of Gymnasium, or a class derived from it, is around an environment."""
    return any(isinstance(layer, NORMALIZERS) for layer in layers_of(env))


def _may_change_rewards(layer: Layer) -> bool:
    if isinstance(layer, REWARD_WRAPPERS):
        return True
    if not isinstance(layer, gymnasium.Wrapper | VectorWrapper):
        return False
    owner = next(kind for kind in type(layer).__mro__ if "step" in vars(kind))
    return not f"{owner.__module__}.".startswith(_KNOWN)

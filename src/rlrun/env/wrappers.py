"""Wrappers to list under `env.wrappers`, the innermost first.

    env:
      wrappers:
        - {_target_: rlrun.env.wrappers.ResizeGray, _partial_: true, size: 84}
        - {_target_: rlrun.env.wrappers.FrameStack, _partial_: true, count: 4}

Any other callable that takes an environment and returns one does as well, `gymnasium.wrappers.…` among them.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.wrappers import FrameStackObservation, TimeLimit

from rlrun.core.errors import ConfigError, RlrunError, SpaceError
from rlrun.core.typing import Array

__all__ = [
    "ActionRepeat",
    "Costs",
    "FrameStack",
    "RandomGoal",
    "ResizeGray",
    "TimeLimit",
]

AnyEnv = gymnasium.Env[Any, Any]
_LARGE = 4096  # bytes; for smaller stacks the time to rebuild them outweighs the saved memory
_LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601


def _box(env: AnyEnv, wrapper: str) -> Box:
    """Return the observation space of an environment whose observation is one array."""
    space = env.observation_space
    if not isinstance(space, Box):
        raise SpaceError(f"{wrapper} wants a Box observation, got {type(space).__name__}")
    return space


def _at_least_one(count: int, wrapper: str) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ConfigError(f"{wrapper}.count wants a whole number above 0, got {count!r}")
    return count


class FrameStack(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Observe the last `count` observations, the oldest first; an episode starts with its first one repeated.

    Vectors [D] and gray images [H, W] become [count, …]; images with channels are joined along these:
    [H, W, C] becomes [H, W, count * C] and [C, H, W] becomes [count * C, H, W].
    """

    def __init__(self, env: AnyEnv, count: int) -> None:
        super().__init__(env)
        space = _box(env, "FrameStack")
        self.frames: deque[Array] = deque(maxlen=_at_least_one(count, "FrameStack"))
        image = len(space.shape) == 3
        # Channels are the short side of an image, in front or at the end.
        self.axis = (0 if space.shape[0] < space.shape[-1] else -1) if image else 0
        self.join = np.concatenate if image else np.stack
        low, high = (self.join([bound] * count, axis=self.axis) for bound in (space.low, space.high))
        self.observation_space = Box(low, high, dtype=space.dtype.type)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        self.frames.extend([np.array(observation)] * (self.frames.maxlen or 1))
        return self.join(self.frames, axis=self.axis), info

    def step(self, action: Any) -> tuple[Array, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.frames.append(np.array(observation))
        return self.join(self.frames, axis=self.axis), reward, terminated, truncated, info


def frames_of(env: AnyEnv) -> int:
    """Return how many frames an environment stacks in a large observation, as its outermost wrapper; 1 for none.

    A memory can store each of these frames once: a stack is the newest frames of the episode, the first one
    repeated before its beginning.
    """
    if isinstance(env, FrameStack):
        count = env.frames.maxlen or 1
    elif isinstance(env, FrameStackObservation) and env.padding_type == "reset":
        count = env.stack_size
    else:
        return 1
    space = env.observation_space
    size = int(np.prod(space.shape or ())) * np.dtype(space.dtype).itemsize if isinstance(space, Box) else 0
    return int(count) if size > _LARGE else 1


class ResizeGray(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Shrink images [H, W, 3] or [H, W] to `size` by averaging areas, and make them gray by default.

    The result is uint8: [size, size], or [size, size, 3] with `gray=False`.
    """

    def __init__(self, env: AnyEnv, size: int | tuple[int, int] = 84, gray: bool = True) -> None:
        super().__init__(env)
        space = _box(env, "ResizeGray")
        colored = len(space.shape) == 3 and space.shape[-1] == 3
        if space.dtype != np.uint8 or not (colored or len(space.shape) == 2):
            raise SpaceError(
                f"ResizeGray wants uint8 images [H, W, 3] or [H, W], got {list(space.shape)} {space.dtype}"
            )
        self.size = (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
        self.gray = gray and colored
        shape = self.size if gray or not colored else (*self.size, 3)
        self.observation_space = Box(0, 255, shape, np.uint8)

    def observation(self, observation: Array) -> Array:
        import torch
        from torch.nn.functional import interpolate

        pixels = observation.astype(np.float32)
        if self.gray:
            pixels = pixels @ _LUMINANCE
        channels = torch.from_numpy(pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0).copy())
        small = interpolate(channels[None], size=self.size, mode="area")[0].round().to(torch.uint8).numpy()  # [C, h, w]
        return small[0] if pixels.ndim == 2 else np.ascontiguousarray(np.moveaxis(small, 0, -1))


class ActionRepeat(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Take each action `count` times, sum the rewards, stop where the episode ends."""

    def __init__(self, env: AnyEnv, count: int) -> None:
        super().__init__(env)
        self.count = _at_least_one(count, "ActionRepeat")

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        total: Any = 0.0
        for _ in range(self.count):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total = total + reward
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info


class RandomGoal(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Draw one of `count` goals for each episode and observe it, too: {"observation": …, "goal": 0 … count - 1}.

    Networks get it one-hot. With a `size` in place of a count it is so many numbers, uniform in [-1, 1]. A reward, or a
    discriminator of goals (`+with=diayn`), gives goals their meaning. Goals have their own generator, so the
    environment's draws stay the same; `reset(seed=…)` seeds both.
    """

    def __init__(self, env: AnyEnv, count: int | None = None, name: str = "goal", size: int | None = None) -> None:
        super().__init__(env)
        if (count is None) == (size is None):
            raise ConfigError(f"RandomGoal: wanted a count of goals or a size, got {count} and {size}")
        self.count = None if count is None else _at_least_one(count, "RandomGoal")
        self.size = None if size is None else _at_least_one(size, "RandomGoal.size")
        self.name = name
        self.generator = _goal_generator(None)
        space = Discrete(self.count) if self.count else Box(-1.0, 1.0, (self.size or 0,), np.float32)
        self.goal: Any = None
        self.observation_space = Dict({"observation": env.observation_space, name: space})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        if seed is not None:
            self.generator = _goal_generator(seed)
        if self.count:
            self.goal = self.generator.integers(self.count)
        else:
            self.goal = self.generator.uniform(-1.0, 1.0, self.size).astype(np.float32)
        return self._observe(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._observe(observation), reward, terminated, truncated, info

    def _observe(self, observation: Any) -> dict[str, Any]:
        return {"observation": observation, self.name: self.goal}


class Costs(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Add the costs in the info of a step to the reward: [reward, -cost, …].

    Args:
        env: its infos are read.
        names: of costs in the info, as Safety-Gymnasium's `cost`.

    Raises:
        RlrunError: in `step`, where the info lacks one.
    """

    def __init__(self, env: AnyEnv, names: Sequence[str] = ("cost",)) -> None:
        super().__init__(env)
        self.names = [names] if isinstance(names, str) else list(names)
        if not self.names:
            raise ConfigError("env.wrappers: Costs.names is empty")
        self.reward_space = Box(-np.inf, np.inf, (1 + len(self.names),), np.float32)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        for name in self.names:
            if name not in info:
                keys = ", ".join(map(str, info)) or "nothing"
                raise RlrunError(f"env.wrappers: Costs: the info of a step has no '{name}'; it has {keys}")
        paid = [float(reward), *(-float(info[name]) for name in self.names)]
        return observation, np.array(paid, np.float32), terminated, truncated, info


def _goal_generator(seed: int | None) -> np.random.Generator:
    """Return a generator independent of the environment's, which has the same seed."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(1802,))))

"""Wrappers to list under `env.wrappers`, the innermost first.

    env:
      wrappers:
        - {_target_: rlrun.env.wrappers.ResizeGray, _partial_: true, size: 84}
        - {_target_: rlrun.env.wrappers.FrameStack, _partial_: true, count: 4}

Any other callable that takes an environment and returns one is possible, too, such as `gymnasium.wrappers.…`.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary
from gymnasium.wrappers import TimeLimit
from torch.nn.functional import interpolate

from rlrun.core import spaces as ours
from rlrun.core.errors import ConfigError, RlrunError, SpaceError
from rlrun.core.typing import Array
from rlrun.env.spaces import from_gymnasium
from rlrun.env.vector import GOALS

__all__ = [
    "ActionMask",
    "ActionRepeat",
    "Costs",
    "FrameStack",
    "KeepNumbers",
    "RandomGoal",
    "ResizeGray",
    "TimeLimit",
]

AnyEnv = gymnasium.Env[Any, Any]
_LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601


def _box(env: AnyEnv, wrapper: str, key: str | None = None) -> Box:
    """Return the Box space of an environment's observation, or of its part `key`."""
    space: Any = env.observation_space
    if key is not None:
        if not isinstance(space, Dict) or key not in space.spaces:
            parts = (
                f"it has {', '.join(space.spaces)}" if isinstance(space, Dict) else "it is one array: leave keys out"
            )
            raise SpaceError(f"{wrapper}.keys: the observation has no part '{key}'; {parts}")
        space = space[key]
    if not isinstance(space, Box):
        where = "" if key is None else f" '{key}'"
        raise SpaceError(f"{wrapper} wants a Box observation{where}, got {type(space).__name__}")
    return space


def _at_least_one(count: int, wrapper: str) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ConfigError(f"{wrapper}.count wants a whole number above 0, got {count!r}")
    return count


class FrameStack(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Stacks the last `count` observations, the oldest first; an episode starts with its first one repeated.

    Vectors [D] and gray images [H, W] become [count, …]; images with channels are joined along these:
    [H, W, C] becomes [H, W, count * C] and [C, H, W] becomes [count * C, H, W].

    Args:
        env: the environment.
        count: of observations.
        axis: join all parts along this axis instead; a vector [D] becomes [count * D] with 0.
        keys: parts of a Dict observation to stack; the others stay. None = the observation is one array.

    Raises:
        SpaceError: a part is not a Box, or is missing.
    """

    def __init__(self, env: AnyEnv, count: int, *, axis: int | None = None, keys: Sequence[str] | None = None) -> None:
        super().__init__(env)
        self.frames: deque[Any] = deque(maxlen=_at_least_one(count, "FrameStack"))
        self.joined_along, self.keys = axis, keys
        if isinstance(keys, str):
            raise ConfigError(f"FrameStack.keys: wanted a list of parts, such as [{keys}], got '{keys}'")
        parts = [_box(env, "FrameStack")] if keys is None else [_box(env, "FrameStack", key) for key in keys]
        names = [""] if keys is None else list(keys)
        self.joined = {name: _joined(space, axis) for name, space in zip(names, parts, strict=True)}
        spaces = [
            Box(*(_join([bound] * count, along) for bound in (space.low, space.high)), dtype=space.dtype.type)
            for space, along in zip(parts, self.joined.values(), strict=True)
        ]
        whole: Any = env.observation_space
        self.observation_space = spaces[0] if keys is None else Dict({**whole, **dict(zip(keys, spaces, strict=True))})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        self.frames.extend([self._copied(observation)] * (self.frames.maxlen or 1))
        return self._stacked(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.frames.append(self._copied(observation))
        return self._stacked(observation), reward, terminated, truncated, info

    def _copied(self, observation: Any) -> list[Array]:
        return [np.array(observation if self.keys is None else observation[key]) for key in self.keys or [""]]

    def stacked(self, part: Array) -> Array:
        """Return a stack of `count` copies of an array of one observation's size."""
        axis = next(iter(self.joined.values()))
        joined: Array = _join([part] * (self.frames.maxlen or 1), axis)
        return joined

    def _stacked(self, observation: Any) -> Any:
        parts = [
            _join(frames, along)
            for frames, along in zip(zip(*self.frames, strict=True), self.joined.values(), strict=True)
        ]
        return parts[0] if self.keys is None else {**observation, **dict(zip(self.keys, parts, strict=True))}


def _joined(space: Box, axis: int | None) -> int:
    """Return the axis, from the end, along which frames of a space are joined; `FIRST` for a new first one."""
    dimensions = len(space.shape)
    if axis is not None:
        if not -dimensions <= axis < dimensions:
            raise ConfigError(f"FrameStack.axis: wanted a number from {-dimensions} to {dimensions - 1}, got {axis}")
        return axis - dimensions if axis >= 0 else axis
    if dimensions != 3:
        return ours.FIRST
    leaf = from_gymnasium(space, "the observation space")
    assert isinstance(leaf, ours.Box)
    return leaf.channel_axis


def _join(frames: Sequence[Array], axis: int) -> Any:
    return np.stack(frames) if axis == ours.FIRST else np.concatenate(frames, axis)


class KeepNumbers(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Keeps some numbers of a vector observation, so that the agent has to infer the others from memory.

    Args:
        env: with a vector as observation.
        places: indices of the numbers, from 0, each once.

    Raises:
        SpaceError, ConfigError: the observation is not a vector, or an index is invalid.
    """

    def __init__(self, env: AnyEnv, places: Sequence[int]) -> None:
        super().__init__(env)
        space = _box(env, "KeepNumbers")
        if len(space.shape) != 1:
            raise SpaceError(f"KeepNumbers wants a vector, got {list(space.shape)}")
        size = space.shape[0]
        self.places = list(places)
        if not self.places or len({*self.places}) < len(self.places) or not {*self.places} <= {*range(size)}:
            raise ConfigError(f"KeepNumbers.places: wanted different places from 0 to {size - 1}, got {self.places}")
        dtype: Any = space.dtype
        self.observation_space = Box(space.low[self.places], space.high[self.places], dtype=dtype)

    def observation(self, observation: Array) -> Array:
        kept: Array = np.asarray(observation)[self.places]
        return kept


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
        pixels = observation.astype(np.float32)
        if self.gray:
            pixels = pixels @ _LUMINANCE
        channels = torch.from_numpy(pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0).copy())
        small = interpolate(channels[None], size=self.size, mode="area")[0].round().to(torch.uint8).numpy()  # [C, h, w]
        return small[0] if pixels.ndim == 2 else np.ascontiguousarray(np.moveaxis(small, 0, -1))


class ActionMask(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds an action mask to observations: {"observation": …, "action_mask": flags}; a Dict gets one part more.

    The flags, one for each choice of each decision of the action, come from `action_mask` in the infos, or else from
    the environment's method `action_masks`, as for sb3-contrib's MaskablePPO.

    Raises:
        RlrunError: in `reset` or `step`, if the flags are missing.
    """

    def __init__(self, env: AnyEnv) -> None:
        super().__init__(env)
        action = from_gymnasium(env.action_space, "the action space", action=True)
        choices = sum(sum(leaf.choices) for _, leaf in ours.leaves(action) if not isinstance(leaf, ours.Box))
        if not choices:
            raise SpaceError(f"ActionMask: the actions {ours.describe(action)} have no choices")
        inner: Any = env.observation_space
        parts = inner.spaces if isinstance(inner, Dict) else {"observation": inner}
        self.observation_space = Dict({**parts, ours.ACTION_MASK: MultiBinary(choices)})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return self._observe(observation, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._observe(observation, info), reward, terminated, truncated, info

    def _observe(self, observation: Any, info: dict[str, Any]) -> dict[str, Any]:
        flags = info.get(ours.ACTION_MASK)
        if flags is None and self.env.has_wrapper_attr("action_masks"):
            flags = self.env.get_wrapper_attr("action_masks")()
        if isinstance(flags, tuple):  # of the decisions, as Gymnasium's spaces take them
            flags = np.concatenate([np.ravel(part) for part in flags])
        count = self.observation_space[ours.ACTION_MASK].n  # type: ignore[index]
        if flags is None or np.size(flags) != count:
            wanted = f"wanted {count} flags as '{ours.ACTION_MASK}' in the info, or from a method action_masks()"
            raise RlrunError(f"env.wrappers: ActionMask: {wanted}; got {flags!r}")
        parts = observation if isinstance(observation, dict) else {"observation": observation}
        return {**parts, ours.ACTION_MASK: np.asarray(flags).reshape(-1).astype(np.int8)}


class ActionRepeat(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Takes each action `count` times, or until the episode ends, and sums the rewards.

    Raises:
        SpaceError: observations have an action mask, which may forbid a repetition.
    """

    def __init__(self, env: AnyEnv, count: int) -> None:
        super().__init__(env)
        if isinstance(env.observation_space, Dict) and ours.ACTION_MASK in env.observation_space.spaces:
            raise SpaceError("ActionRepeat: an action mask may forbid what is repeated; repeat inside the environment")
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
    """Draws one of `count` goals for each episode and adds it to observations: {"observation": …, "goal": 0 … count -
    1}.

    Networks read it one-hot. With a `size` in place of a count the goal is a vector of this size, uniform in [-1, 1]. A
    reward, or a discriminator of goals (`+with=diayn`), gives goals their meaning. Goals have their own generator, so
    the environment's draws stay the same; `reset(seed=…)` seeds both. With an `option`, the environment gets the goal
    under this name among the options of its reset. The option `goal_probabilities` [count] of a reset is the chance of
    each goal, and is not passed on; without it goals are equally likely.
    """

    draws_goals = True

    def __init__(
        self,
        env: AnyEnv,
        count: int | None = None,
        name: str = "goal",
        size: int | None = None,
        option: str | None = None,
    ) -> None:
        super().__init__(env)
        if (count is None) == (size is None):
            raise ConfigError(f"RandomGoal: wanted a count or a size, goals=4 or goal_size=2; got {count} and {size}")
        self.count = None if count is None else _at_least_one(count, "RandomGoal")
        self.size = None if size is None else _at_least_one(size, "RandomGoal.size")
        self.name, self.option = name, option
        self.generator = _goal_generator(None)
        space = Discrete(self.count) if self.count else Box(-1.0, 1.0, (self.size or 0,), np.float32)
        self.goal: Any = None
        inner: Any = env.observation_space
        parts = dict(inner.spaces) if isinstance(inner, Dict) else {}
        masks = {key: parts.pop(key) for key in (ours.ACTION_MASK,) if key in parts}
        self.masked = bool(masks)  # an action mask stays at the top
        self.observation_space = Dict({"observation": Dict(parts) if masks else inner, name: space, **masks})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.generator = _goal_generator(seed)
        options = dict(options or {})
        probabilities = options.pop(GOALS, None)
        if self.count and probabilities is not None:
            self.goal = self.generator.choice(self.count, p=probabilities)
        elif self.count:
            self.goal = self.generator.integers(self.count)
        else:
            self.goal = self.generator.uniform(-1.0, 1.0, self.size).astype(np.float32)
        if self.option is not None:
            options[self.option] = self.goal
        observation, info = self.env.reset(seed=seed, options=options or None)
        return self._observe(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._observe(observation), reward, terminated, truncated, info

    def _observe(self, observation: Any) -> dict[str, Any]:
        if not self.masked:
            return {"observation": observation, self.name: self.goal}
        parts = {key: part for key, part in observation.items() if key != ours.ACTION_MASK}
        return {"observation": parts, self.name: self.goal, ours.ACTION_MASK: observation[ours.ACTION_MASK]}


def draws_goals(env: AnyEnv) -> bool:
    """Return True if a wrapper of an environment draws goals, by probabilities among the options of a reset."""
    return env.has_wrapper_attr("draws_goals")


class Costs(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Turns the reward into a vector with the costs in the info of a step: [reward, -cost, …].

    Args:
        env: the environment.
        names: of costs in the info, such as Safety-Gymnasium's `cost`.

    Raises:
        RlrunError: in `step`, if the info lacks one.
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
    """Return a generator independent of the environment's, which may have the same seed."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(1802,))))

"""Converters of Gymnasium's spaces and values, each chosen once, when an environment is made."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np

from rlrun.core.errors import DataError, SpaceError
from rlrun.core.spaces import Box, Composite, Discrete, MultiDiscrete, Space
from rlrun.core.typing import Array, Tree

Write = Callable[[Tree, int, Any], None]  # (buffer tree [N, …], env, one env's observation)
Convert = Callable[[Any], Any]
ALIGNMENT = 16  # bytes; the allocator gives every array an address that is a multiple

# Dtypes that torch lacks or that no network uses, and the dtypes that store their numbers.
_DTYPES = {"float64": "float32", "float16": "float32"}
_DTYPES |= {"uint16": "int32", "uint32": "int64", "uint64": "int64"}


class OuterSpaces:
    """Gymnasium's spaces of one env, under the names that networks for vector environments read."""

    outer: tuple[gymnasium.Space[Any], gymnasium.Space[Any]]  # observation, action

    @property
    def single_observation_space(self) -> gymnasium.Space[Any]:
        """The observation space of one env."""
        return self.outer[0]

    @property
    def single_action_space(self) -> gymnasium.Space[Any]:
        """The action space of one env."""
        return self.outer[1]


def from_gymnasium(space: gymnasium.Space[Any], place: str, *, action: bool = False) -> Space:
    """Translate a gymnasium space; the parts of a Tuple are named "0", "1", ….

    Actions inside `rlrun` are float32 in [-1, 1] for every Box, whatever the environment's bounds and dtype.

    Raises:
        SpaceError: a part is of an unsupported kind (Text, Graph, Sequence, OneOf, …), or has nothing to choose.
    """
    if action and 0 in (space.shape or ()):
        raise SpaceError(
            f"{place} has shape {list(space.shape or ())}: an action of no numbers leaves nothing to learn"
        )
    if isinstance(space, gymnasium.spaces.Box):
        dtype = "float32" if action else _DTYPES.get(space.dtype.name, space.dtype.name)
        with np.errstate(over="ignore"):  # the largest float64 is not a bound: infinite as float32
            low, high = space.low.astype(dtype), space.high.astype(dtype)
            if space.dtype == np.uint64:  # whose largest number is negative as int64
                high = np.minimum(space.high, np.iinfo(np.int64).max).astype(dtype)
        return Box(shape=tuple(space.shape), low=low, high=high, dtype=dtype)
    if isinstance(space, gymnasium.spaces.Discrete):
        return Discrete(n=int(space.n), start=int(space.start))
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        return MultiDiscrete(nvec=space.nvec, start=space.start, dtype=space.dtype.name)
    if isinstance(space, gymnasium.spaces.MultiBinary):
        return MultiDiscrete(nvec=np.full(space.shape, 2), start=np.zeros(space.shape, np.int64), dtype="int8")
    parts = parts_of(space)
    for name in parts:
        if not name:
            raise SpaceError(f"{place} has a part whose name is empty; give it one by a wrapper")
        if "." in name:
            raise SpaceError(f"{place} has a part '{name}'; a dot separates levels here, so rename it by a wrapper")
    if not parts:
        mission = (
            type(space).__name__ == "MissionSpace"
        )  # a part of MiniGrid's observations, which env=minigrid removes
        wrapper = "as env=minigrid has it, gymnasium.wrappers.FilterObservation" if mission else "a wrapper"
        raise SpaceError(
            f"{place} is {type(space).__name__}; wanted Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple "
            f"of these ({wrapper} in env.wrappers can turn it into one)"
        )
    return Composite({name: from_gymnasium(part, f"{place}.{name}", action=action) for name, part in parts.items()})


def to_gymnasium(space: Space, *, tuples: bool = False) -> gymnasium.Space[Any]:
    """Return a space as Gymnasium's, in the order of its parts.

    tuples: whether parts named "0", "1", … become a Tuple; else a Dict.
    """
    if isinstance(space, Composite):
        parts = {name: to_gymnasium(part, tuples=tuples) for name, part in space.parts.items()}
        numbered = tuples and [*parts] == [str(index) for index in range(len(parts))]
        return gymnasium.spaces.Tuple(parts.values()) if numbered else gymnasium.spaces.Dict([*parts.items()])
    if isinstance(space, Box):
        return gymnasium.spaces.Box(space.low, space.high, space.shape, np.dtype(space.dtype))  # type: ignore[arg-type]
    if isinstance(space, Discrete):
        return gymnasium.spaces.Discrete(space.n, start=space.start)
    if space.dtype == "int8" and (space.nvec == 2).all() and not space.start.any():
        return gymnasium.spaces.MultiBinary(space.shape if len(space.shape) > 1 else space.shape[0])
    return gymnasium.spaces.MultiDiscrete(space.nvec, dtype=np.dtype(space.dtype), start=space.start)  # type: ignore[arg-type]


def rewards_of(env: Any, place: str) -> int:
    """Return the length of reward vectors, by the environment's `reward_space`; 0 = rewards are scalars.

    Raises:
        SpaceError: `reward_space` is not a Box of one dimension.
    """
    space = getattr(env, "reward_space", None)
    if space is None and hasattr(env, "has_wrapper_attr") and env.has_wrapper_attr("reward_space"):
        space = env.get_wrapper_attr("reward_space")
    if space is None:
        return 0
    if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) > 1 or 0 in space.shape:
        raise SpaceError(f"{place}: the reward space is {space}; wanted a Box of one dimension, one number a reward")
    return int(space.shape[0]) if space.shape else 0


def rewards(count: int, numbers: int) -> Array:
    """Return zeros for the rewards of `count` envs: [N], or [N, R] for several numbers."""
    return np.zeros((count, numbers) if numbers else count, np.float32)


def parts_of(space: gymnasium.Space[Any]) -> dict[str, gymnasium.Space[Any]]:
    """Return the parts of a Dict or Tuple by name; nothing for a single space."""
    if isinstance(space, gymnasium.spaces.Dict):
        return dict(space.spaces)
    if isinstance(space, gymnasium.spaces.Tuple):
        return {str(index): part for index, part in enumerate(space.spaces)}
    return {}


def key_of(space: gymnasium.Space[Any], name: str) -> str | int:
    """Return the key of a part in the environment's container."""
    return int(name) if isinstance(space, gymnasium.spaces.Tuple) else name


def empty(space: Space, count: int) -> Tree:
    """Return zeros for `count` envs: [N, …]."""
    if isinstance(space, Composite):
        return {name: empty(part, count) for name, part in space.parts.items()}
    return np.zeros((count, *space.shape), dtype=space.dtype)


def aligned(count: int, leaf: Array) -> Array:
    """Return zeros [count, …] for arrays like a leaf, each aligned like an array of its own.

    Products of matrices may round differently if an operand is aligned differently.
    """
    unit = ALIGNMENT // math.gcd(ALIGNMENT, leaf.itemsize)
    padded = np.zeros((count, -(-leaf.size // unit) * unit), leaf.dtype)
    return padded[:, : leaf.size].reshape(count, *leaf.shape)


def is_plain(space: gymnasium.Space[Any]) -> bool:
    """Return True for rows of numbers [n] that are stored in the environment's own dtype."""
    if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
        return False
    return space.dtype.name not in _DTYPES


def row_writer(space: gymnasium.Space[Any]) -> Write:
    """Return the function that writes one env's observation into a buffer of `empty`."""
    if parts := parts_of(space):
        writers = [(name, key_of(space, name), row_writer(part)) for name, part in parts.items()]

        def write_parts(buffer: Tree, env_index: int, value: Any) -> None:
            for name, key, write in writers:
                write(buffer[name], env_index, value[key])

        return write_parts
    if isinstance(space, gymnasium.spaces.Discrete):
        first, end = int(space.start), int(space.start) + int(space.n)

        def write_choice(buffer: Tree, env_index: int, value: Any) -> None:
            if not first <= value < end:
                raise DataError(f"it gave an observation of {value}; {named(space)} from {first} to {end - 1}")
            buffer[env_index] = value - first

        return write_choice
    shape = tuple(space.shape or ())

    def write(buffer: Tree, env_index: int, value: Any) -> None:
        try:
            fits = value.shape == shape
        except AttributeError:
            fits = np.shape(value) == shape
        if not fits:  # numpy might broadcast it
            raise DataError(f"it gave an observation of shape {list(np.shape(value))}; {named(space)}")
        buffer[env_index] = value

    if isinstance(space, gymnasium.spaces.Box):
        return write
    start = getattr(space, "start", 0)
    counts = getattr(space, "nvec", 2)

    def write_choices(buffer: Tree, env_index: int, value: Any) -> None:
        choices = np.subtract(value, start)
        if ((choices < 0) | (choices >= counts)).any():
            raise DataError(f"it gave an observation with a choice that is not in its space; {named(space)}")
        write(buffer, env_index, choices)

    return write_choices


def named(space: gymnasium.Space[Any]) -> str:
    """Return a description of an observation space, for messages."""
    return f"its observation_space says {type(space).__name__}{list(space.shape or ())} {space.dtype}"


def _start(space: gymnasium.Space[Any]) -> Any:
    """Return the space's `start`; None if it is 0."""
    start = getattr(space, "start", None)
    return start if start is not None and np.any(start) else None


def batch_reader(space: gymnasium.Space[Any]) -> Convert:
    """Return the function that copies a vector environment's observations into a new tree [N, …]."""
    if parts := parts_of(space):
        readers = [(name, key_of(space, name), batch_reader(part)) for name, part in parts.items()]
        return lambda value: {name: read(value[key]) for name, key, read in readers}
    ours = from_gymnasium(space, "observation space")
    assert not isinstance(ours, Composite)
    dtype, start = np.dtype(ours.dtype), _start(space)
    if start is None:
        return lambda value: np.array(value, dtype=dtype, order="C")
    return lambda value: np.subtract(value, start).astype(dtype)


def action_writer(space: gymnasium.Space[Any], count: int) -> Convert | None:
    """Return the function from policy actions [N, …] to the environment's; None if both are equal.

    Bounds are applied last, so that rounding never leaves the environment's space. `count` is N.
    """
    if parts := parts_of(space):
        writers = [(name, action_writer(part, count) or (lambda value: value)) for name, part in parts.items()]
        if isinstance(space, gymnasium.spaces.Tuple):
            return lambda action: tuple(write(action[name]) for name, write in writers)
        return lambda action: {name: write(action[name]) for name, write in writers}
    if isinstance(space, gymnasium.spaces.Box):
        return _box_writer(space, count)
    if isinstance(space, gymnasium.spaces.Discrete) and _start(space) is None:
        return None
    start, dtype = getattr(space, "start", 0), space.dtype
    return lambda action: np.add(action, start).astype(dtype, copy=False)


def _box_writer(space: gymnasium.spaces.Box, count: int) -> Convert:
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        return lambda action: np.array(action, dtype=space.dtype)
    if space.dtype.kind != "f":  # type: ignore[union-attr]
        least, most = space.low.astype(np.float64), space.high.astype(np.float64)
        scale, center = 0.5 * (most - least), 0.5 * (most + least)
        return lambda action: np.clip(np.rint(action * scale + center), least, most).astype(space.dtype)
    # Bounds in the shape of the batch: broadcasting would cost more than the arithmetic.
    low, high = (np.repeat(bound[None], count, axis=0) for bound in (space.low, space.high))
    half, middle, dtype = 0.5 * high - 0.5 * low, 0.5 * high + 0.5 * low, space.dtype  # no overflow for huge bounds

    def bound(action: Array) -> Array:  # writing in place would take twice as long for few numbers
        return np.minimum(np.maximum(action, low), high)

    def write_unit(action: Array) -> Array:
        return bound(np.asarray(action, dtype))

    def write_centered(action: Array) -> Array:
        return bound(np.asarray(action, dtype) * half)

    def write_scaled(action: Array) -> Array:
        return bound(np.asarray(action, dtype) * half + middle)

    if (low == -1.0).all() and (high == 1.0).all():
        return write_unit
    return write_scaled if middle.any() else write_centered


def policy_actions(space: Any, value: Any) -> Tree:
    """Return the environment's own actions as policy actions; the inverse of `action_writer`, for any leading axes."""
    if parts := parts_of(space):
        return {name: policy_actions(part, value[key_of(space, name)]) for name, part in parts.items()}
    if not isinstance(space, gymnasium.spaces.Box):
        choices = np.subtract(value, getattr(space, "start", 0))
        if (choices != np.floor(choices)).any():
            raise ValueError(f"choices are whole numbers, not {value}")
        return choices.astype(np.int64)
    if not space.is_bounded():
        return np.asarray(value, np.float32)
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    half = np.where(high > low, (high - low) / 2, 1.0)
    return np.clip((np.asarray(value, np.float64) - (high + low) / 2) / half, -1.0, 1.0).astype(np.float32)


def row_splitter(space: gymnasium.Space[Any]) -> Callable[[Any], Iterator[Any]] | None:
    """Return the function that iterates over a batch of environment actions env by env; None for an array."""
    parts = parts_of(space)
    if not parts:
        return None
    splitters = [(key_of(space, name), row_splitter(part) or iter) for name, part in parts.items()]
    if isinstance(space, gymnasium.spaces.Tuple):
        return lambda batch: zip(*(split(batch[key]) for key, split in splitters), strict=True)
    names = [key for key, _ in splitters]

    def split_dict(batch: Any) -> Iterator[dict[Any, Any]]:
        for values in zip(*(split(batch[key]) for key, split in splitters), strict=True):
            yield dict(zip(names, values, strict=True))

    return split_dict

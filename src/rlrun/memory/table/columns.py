"""The columns of a table, stacked frames, and tags of episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.core.errors import ConfigError, RequestError, RlrunError, did_you_mean, require_at_least
from rlrun.core.machine import main_memory
from rlrun.core.spaces import FIRST, Box, Spaces, leaves
from rlrun.core.typing import Array, Batch, Tree
from rlrun.memory.table.index import EpisodeIndex, grown
from rlrun.memory.table.samplers import Rows

LENGTH = 1_000_000  # default transitions of a memory
SHARE = 0.25  # of main memory that it may take
Gather = Callable[[str, Array], Tree]


@dataclass(frozen=True)
class Column:
    """One value a step; "observation.position" is the leaf `position` of the tree `observation`."""

    name: str
    shape: tuple[int, ...] = ()
    dtype: str = "float32"

    tag: bool = False  # one value an episode, in place of one a step
    choices: tuple[int, ...] = ()  # number of choices of each element; () = it holds numbers
    frame_axis: int | None = None  # along which frames are joined, see `rlrun.core.spaces.Box`
    info: bool = False  # read from the info of the step, by its name
    every: int = 1  # n: in rings only the values of steps n, 2 n, … of an episode are stored, see `Sparse`

    @property
    def nbytes(self) -> int:
        """Bytes of one value."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    @property
    def keys(self) -> tuple[str, ...]:
        """The path to the leaf in a row."""
        return tuple(self.name.split("."))

    def require_choices(self, values: Array, source: str) -> None:
        """Refuse loaded values [n, …] outside the choices.

        Raises:
            RequestError: naming the source and the column.
        """
        if self.choices and ((values < 0) | (values >= np.reshape(self.choices, self.shape))).any():
            range_ = f"from {values.min()} to {values.max()}"
            raise RequestError(f"{source} has column '{self.name}' {range_}; there are {[*self.choices]} choices")


OWN = ("observation", "action", "reward", "terminated", "truncated", "next_observation")


def require_frames(spaces: Spaces | None, frame_stack: int) -> None:
    """Raise a ConfigError if observations cannot be stacks of frames."""
    require_at_least("frame_stack", frame_stack, 1)
    for path, leaf in leaves(spaces.observation) if frame_stack > 1 and spaces is not None else ():
        if len(leaf.shape) < 2:
            name = f"observation.{path}" if path else "observation"
            raise ConfigError(f"frame_stack: {name} {list(leaf.shape)} is no stack of frames; leave it at 1")


def default_length(columns: Iterable[Column], frame_stack: int = 1) -> int:
    """Return the default length of a memory in transitions.

    It does not depend on a run's budget, so an extended run equals a longer one.
    """
    shared = {column: frame_stack if column.keys[0] == "observation" else 1 for column in columns if not column.tag}
    row = sum(column.nbytes // frames for column, frames in shared.items())
    return int(min(LENGTH, SHARE * main_memory() // max(row, 1)))


def make_columns(spaces: Spaces | None, extra: Mapping[str, Any] | None) -> tuple[list[Column], dict[str, Any]]:
    """Return the columns of the spaces and further ones by name, with tags; and the virtual columns.

    A virtual column is a callable. A column without numbers, `{shape: 0}`, is left out.

    Raises:
        ConfigError: there is no column, or a setting or dtype is unknown.
    """
    columns: dict[str, Column] = {}
    if spaces is not None:
        for root, space in (("observation", spaces.observation), ("action", spaces.action)):
            for path, leaf in leaves(space):
                dtype = leaf.dtype
                if root == "action":  # policy actions, not the environment's
                    dtype = "float32" if isinstance(leaf, Box) else "int64"
                elif dtype == "float64":  # doubles cost twice the memory and every network wants singles
                    dtype = "float32"
                name = f"{root}.{path}" if path else root
                known = {key: getattr(leaf, key) for key in ("choices", "frame_axis") if hasattr(leaf, key)}
                columns[name] = Column(name, leaf.shape, dtype, **known)
        columns["reward"] = Column("reward", (spaces.rewards,) if spaces.rewards else ())
        columns |= {name: Column(name, dtype="bool") for name in ("terminated", "truncated")}
    extra = {name: value for given in (extra or {}).items() for name, value in _parts(*given)}
    for name in extra:
        if spaces is not None and name.partition(".")[0] in OWN:
            raise ConfigError(f"memory.columns.{name}: the memory has that column already; choose another name")
    virtual = {name: value for name, value in extra.items() if callable(value)}
    for name, value in extra.items():
        if name not in virtual:
            column = value if isinstance(value, Column) else _parse(name, value)
            if 0 not in column.shape:  # an empty column, such as the state of a network without one
                columns[name] = column
    if not columns:
        raise ConfigError("memory: a table needs spaces or columns; both are missing")
    return list(columns.values()), virtual


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield a column, or one for each part of a shape that is a tree."""
    shape = value.get("shape") if isinstance(value, Mapping) else None
    if not isinstance(shape, Mapping):
        yield name, value
        return
    for key, part in shape.items():
        yield from _parts(f"{name}.{key}", {**value, "shape": part})


def _parse(name: str, value: Mapping[str, Any] | None) -> Column:
    if value is not None and not isinstance(value, Mapping):
        raise ConfigError(f"memory.columns.{name}: wanted settings such as {{shape: [2]}} or a _target_, got {value!r}")
    settings = {"shape": (), "dtype": "float32", "tag": False, "info": False}
    for key in value or {}:
        if key not in settings:
            raise ConfigError(f"memory.columns.{name}: no setting '{key}'{did_you_mean(key, settings)}")
    shape, dtype, tag, info = {**settings, **(value or {})}.values()
    sizes = [shape] if isinstance(shape, int) else shape
    if not isinstance(sizes, (list, tuple)) or not all(isinstance(size, int) and size >= 0 for size in sizes):
        raise ConfigError(f"memory.columns.{name}.shape: wanted whole numbers, got {shape!r}")
    try:
        dtype = np.dtype(dtype).name
    except TypeError:
        raise ConfigError(f"memory.columns.{name}.dtype: '{dtype}' is not a numpy dtype") from None
    return Column(name, tuple(sizes), dtype, bool(tag), info=bool(info))


@dataclass(frozen=True)
class Stack:
    """How an observation stacks frames: along a new first axis, or joined along an existing one.

    axis: of a single observation, from the end.
    """

    count: int
    axis: int = -1
    joined: bool = False

    @classmethod
    def of(cls, column: Column, count: int) -> Stack:
        """Return the stack of a column: as the environment makes it, else by the shape.

        Raises:
            ConfigError: it is not a stack of `count` frames.
        """
        shape, axis = column.shape, column.frame_axis
        if shape and shape[0] == count and axis in (None, FIRST):
            return cls(count)
        if axis is None and len(shape) == 3:
            zeros = np.zeros(shape, np.uint8)
            axis = Box(shape, zeros, zeros, column.dtype).channel_axis
        if axis not in (None, FIRST) and shape[axis] % count == 0:
            return cls(count, axis, joined=True)
        raise ConfigError(f"memory.frame_stack: {column.name} {list(shape)} is no stack of {count} frames")

    def frame(self, column: Column) -> Column:
        """Return the column of a single frame."""
        shape = list(column.shape)
        if self.joined:
            shape[self.axis] //= self.count
        return replace(column, shape=tuple(shape if self.joined else shape[1:]))

    def newest(self, stacks: Array) -> Array:
        """Return the newest frame of stacks [n, …]."""
        if not self.joined:
            return stacks[:, -1]
        return np.take(stacks, np.arange(-(stacks.shape[self.axis] // self.count), 0), self.axis)

    def join(self, frames: Tensor, lead: int) -> Tensor:
        """Return stacks from frames [..., count, *frame], with `lead` dimensions before the frames."""
        return torch.cat(frames.unbind(lead), self.axis) if self.joined else frames


ROOT = "observation"


class Frames:
    """Stores single frames of stacked observations, and reads stacks.

    The stack of step s has the frames of steps s - count + 1 … s. Like the environment's wrapper, it repeats the first
    frame of the episode before its first step.
    """

    def __init__(self, columns: list[Column], count: int) -> None:
        stacked = [column for column in columns if column.keys[0] == ROOT]
        self.count = count
        self.stacks = {column.name: Stack.of(column, count) for column in stacked}
        self.columns = [
            self.stacks[column.name].frame(column) if column.name in self.stacks else column for column in columns
        ]
        self.shapes = {column.name: column.shape for column in self.columns}

    def newest(self, observation: Tree, name: str = ROOT) -> Tree:
        """Return the newest frames of stacked observations [n, …]; single frames do not change."""
        if isinstance(observation, Mapping):
            return {key: self.newest(part, f"{name}.{key}") for key, part in observation.items()}
        value = np.asarray(observation)
        return value if value.shape[1:] == self.shapes[name] else self.stacks[name].newest(value)

    def read(self, index: EpisodeIndex, gather: Gather, name: str, slots: Array) -> Tree:
        """Return a column, or a leaf of it, at slots of any shape; observations as stacks.

        gather: returns stored values.
        """
        if name.partition(".")[0] != ROOT:
            return gather(name, slots)
        back = np.minimum(np.arange(self.count)[::-1], index.step(slots)[..., None])
        frames = gather(name, index.before(slots[..., None], back))
        return self._join(frames, name, slots.ndim)

    def _join(self, tree: Any, name: str, lead: int) -> Tree:
        if isinstance(tree, dict):
            return {key: self._join(part, f"{name}.{key}", lead) for key, part in tree.items()}
        return self.stacks[name].join(tree, lead)


class Tags:
    """Values by episode number; open episodes have zeros."""

    def __init__(self, columns: Iterable[Column], index: EpisodeIndex) -> None:
        self.columns = {column.name: column for column in columns}
        self.index = index
        size = len(index.lane)
        self.values = {name: np.zeros((size, *column.shape), column.dtype) for name, column in self.columns.items()}

    def __iter__(self) -> Any:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def check(self, tags: Mapping[str, Any] | None) -> None:
        """Refuse the end of an episode without its tags.

        Raises:
            RlrunError: a tag is missing.
        """
        for name in self.columns:
            if tags is None or name not in tags:
                raise RlrunError(f"memory: an episode ended without its tag '{name}'; given {', '.join(tags or ())}")

    def put(self, episodes: Array, tags: Mapping[str, Any]) -> None:
        """Set the tags of closed episodes [n]; -1 stands for an episode dropped already."""
        self._grow()
        here = np.flatnonzero(episodes >= 0)
        for name, values in self.values.items():
            values[episodes[here]] = np.atleast_1d(np.asarray(tags[name]))[here]

    def clear(self, episodes: Array) -> None:
        """Set the tags of episodes [n] to 0."""
        self._grow()
        for values in self.values.values():
            values[episodes] = 0

    def read(self, rows: Rows) -> Batch:
        """Return the tags of each window's episode [B, …]."""
        self._grow()
        episode = self.index.episode(rows.start)
        return {name: torch.from_numpy(values[episode]) for name, values in self.values.items()}

    def _grow(self) -> None:
        for name, values in self.values.items():
            self.values[name] = grown(values, len(self.index.lane))

    def state_dict(self) -> dict[str, Any]:
        """Return all values."""
        return {name: torch.from_numpy(values.copy()) for name, values in self.values.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        for name in self.values:
            self.values[name] = state[name].numpy().copy()

"""What a table keeps of each step: one flat array a column, images as they came."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.errors import ConfigError, did_you_mean
from rlrun.files import main_memory
from rlrun.spaces import Box, Leaf, Space, Spaces, leaves
from rlrun.typing import Array

LENGTH = 1_000_000  # transitions of a memory whose length nobody set
SHARE = 0.25  # of main memory that it may take


@dataclass(frozen=True)
class Column:
    """One value a step; "observation.position" is the leaf `position` of the tree `observation`."""

    name: str
    shape: tuple[int, ...] = ()
    dtype: str = "float32"

    tag: bool = False  # one value an episode, in place of one a step

    @property
    def nbytes(self) -> int:
        """Bytes of one value."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    @property
    def keys(self) -> tuple[str, ...]:
        """The way to the leaf in a row."""
        return tuple(self.name.split("."))


OWN = ("observation", "action", "reward", "terminated", "truncated", "next_observation")


def columns_of(spaces: Spaces) -> dict[str, Column]:
    """Return the columns of a step: observation, action, reward, terminated, truncated."""
    columns = [_column("observation", path, leaf, leaf.dtype) for path, leaf in leaves(spaces.observation)]
    columns += [_column("action", path, leaf, _action_dtype(leaf)) for path, leaf in leaves(spaces.action)]
    columns += [
        Column("reward", (spaces.rewards,) if spaces.rewards else ()),
        Column("terminated", dtype="bool"),
        Column("truncated", dtype="bool"),
    ]
    return {column.name: column for column in columns}


def _column(root: str, path: str, leaf: Leaf, dtype: str) -> Column:
    # doubles cost twice the memory and every network wants singles
    return Column(f"{root}.{path}" if path else root, leaf.shape, "float32" if dtype == "float64" else dtype)


def _action_dtype(leaf: Space) -> str:
    return "float32" if isinstance(leaf, Box) else "int64"  # policy actions, whatever the environment takes


def default_length(columns: Iterable[Column], frame_stack: int = 1) -> int:
    """Return how many transitions a memory keeps whose length nobody set.

    The number does not depend on a run's budget: a run that is extended remembers what the longer run does.
    """
    shared = {column: frame_stack if column.keys[0] == "observation" else 1 for column in columns if not column.tag}
    row = sum(column.nbytes // frames for column, frames in shared.items())
    return int(min(LENGTH, SHARE * main_memory() // max(row, 1)))


def refuse_vectors(spaces: Spaces) -> None:
    """Refuse to take a vector of an environment for a stack of numbers.

    Raises:
        ConfigError: names the leaf.
    """
    for path, leaf in leaves(spaces.observation):
        if len(leaf.shape) < 2:
            name = f"observation.{path}" if path else "observation"
            raise ConfigError(f"memory.frame_stack: {name} {list(leaf.shape)} is no stack of frames; leave it at 1")


def make_columns(spaces: Spaces | None, extra: Mapping[str, Any] | None) -> tuple[list[Column], dict[str, Any]]:
    """Join the columns of the spaces and those asked for by name.

    Returns the columns, tags among them, and the virtual ones: those given as something to call. A column of no
    numbers, `{shape: 0}`, is left out.

    Raises:
        ConfigError: no column at all, a setting that columns do not have, or an unknown dtype.
    """
    columns = columns_of(spaces) if spaces is not None else {}
    for name in extra or {}:
        if spaces is not None and name.partition(".")[0] in OWN:
            raise ConfigError(f"memory.columns.{name}: the memory has that column already; choose another name")
    virtual = {name: value for name, value in (extra or {}).items() if callable(value)}
    for name, value in (extra or {}).items():
        if name not in virtual:
            column = value if isinstance(value, Column) else _parse(name, value)
            if 0 not in column.shape:  # the state of what has none
                columns[name] = column
    if not columns:
        raise ConfigError("memory: a table needs spaces or columns; both are missing")
    return list(columns.values()), virtual


def _parse(name: str, value: Mapping[str, Any] | None) -> Column:
    if value is not None and not isinstance(value, Mapping):
        raise ConfigError(f"memory.columns.{name}: wanted settings such as {{shape: [2]}} or a _target_, got {value!r}")
    settings = dict(value or {})
    shape, dtype = settings.pop("shape", ()), settings.pop("dtype", "float32")
    tag = bool(settings.pop("tag", False))
    for key in settings:
        known = ("shape", "dtype", "tag")
        raise ConfigError(f"memory.columns.{name}: no setting '{key}'{did_you_mean(key, known)}")
    sizes = [shape] if isinstance(shape, int) else shape
    if not isinstance(sizes, (list, tuple)) or not all(isinstance(size, int) and size >= 0 for size in sizes):
        raise ConfigError(f"memory.columns.{name}.shape: wanted whole numbers, got {shape!r}")
    try:
        dtype = np.dtype(dtype).name
    except TypeError:
        raise ConfigError(f"memory.columns.{name}.dtype: '{dtype}' is not a numpy dtype") from None
    return Column(name, tuple(sizes), dtype, tag)


@dataclass(frozen=True)
class Stack:
    """How a stacked observation is made of frames: along a new first axis, or joined along an existing one.

    axis: of a single observation; negative counts from the end.
    """

    count: int
    axis: int = 0
    joined: bool = False

    @classmethod
    def of(cls, column: Column, count: int) -> Stack:
        """Find out from the shape of a column.

        Raises:
            ConfigError: it is no stack of so many frames.
        """
        shape = column.shape
        if shape and shape[0] == count:
            return cls(count)
        axis = 0 if len(shape) == 3 and shape[0] < shape[-1] else -1  # channels are the short side
        if len(shape) == 3 and shape[axis] % count == 0:
            return cls(count, axis, joined=True)
        raise ConfigError(f"memory.frame_stack: {column.name} {list(shape)} is no stack of {count} frames")

    def frame(self, column: Column) -> Column:
        """Return the column of a single frame."""
        shape = list(column.shape)
        if not self.joined:
            return replace(column, shape=tuple(shape[1:]))
        shape[self.axis] //= self.count
        return replace(column, shape=tuple(shape))

    def newest(self, stacks: Array) -> Array:
        """Return the newest frame of stacks [n, …]."""
        if not self.joined:
            return stacks[:, -1]
        axis = self.axis + 1 if self.axis >= 0 else self.axis
        width = stacks.shape[axis] // self.count
        return np.take(stacks, np.arange(stacks.shape[axis] - width, stacks.shape[axis]), axis)

    def join(self, frames: Tensor, lead: int) -> Tensor:
        """Make stacks of frames [..., count, *frame], `lead` dimensions standing before the frames."""
        if not self.joined:
            return frames
        axis = lead + 1 + self.axis if self.axis >= 0 else self.axis
        parts = list(frames.unbind(lead))
        return torch.cat(parts, axis - 1 if self.axis >= 0 else axis)

"""What an environment gives and takes, without any environment library.

Observations and actions are *trees*: an array for a single space, a dict of trees for
composite ones (the parts of a Tuple are named "0", "1", …). Inside `rlrun` actions are
*policy actions*: Box actions are in [-1, 1], Discrete ones start at 0. The environment
layer maps them to what the environment expects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from rlrun.core.errors import RlrunError, SpaceError, did_you_mean
from rlrun.core.typing import Array, Tree


@dataclass(frozen=True)
class Box:
    """Real numbers or an image, with bounds (infinite where there are none)."""

    shape: tuple[int, ...]
    low: Array
    high: Array
    dtype: str = "float32"

    @property
    def size(self) -> int:
        """Width of the flat network input."""
        return int(np.prod(self.shape))

    @property
    def bounded(self) -> bool:
        return bool(np.isfinite(self.low).all() and np.isfinite(self.high).all())

    @property
    def image(self) -> bool:
        """True for uint8 pixels [H, W] or [H, W, C], [C, H, W]: at least 8 pixels a side."""
        return self.dtype == "uint8" and len(self.shape) in (2, 3) and sorted(self.shape)[-2] >= 8

    @property
    def channels_last(self) -> bool:
        """True if the smallest dimension, which holds the channels, is the last, and for gray images [H, W]."""
        return (self.image and len(self.shape) == 2) or self.shape[-1] == min(self.shape)


@dataclass(frozen=True)
class Discrete:
    """One of `n` choices; the environment counts from `start`."""

    n: int
    start: int = 0
    dtype: str = "int64"
    shape: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        return self.n

    @property
    def choices(self) -> tuple[int, ...]:
        """Number of choices of each decision."""
        return (self.n,)


@dataclass(frozen=True)
class MultiDiscrete:
    """Several choices at once; MultiBinary is the case of two choices each."""

    nvec: Array
    start: Array
    dtype: str = "int64"

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.nvec.shape)

    @property
    def size(self) -> int:
        return int(self.nvec.sum())

    @cached_property  # so that a compiled network finds numbers, not an array to look into
    def choices(self) -> tuple[int, ...]:
        return tuple(int(n) for n in self.nvec.reshape(-1))


@dataclass(frozen=True)
class Composite:
    """Named parts, each a space; from Dict and Tuple."""

    parts: dict[str, Space] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts.values())


Leaf = Box | Discrete | MultiDiscrete
Space = Leaf | Composite


def leaves(space: Space, prefix: str = "") -> Iterator[tuple[str, Leaf]]:
    """Walk the leaves of a space as ("a.b", leaf); the path of a single space is ""."""
    if isinstance(space, Composite):
        for name, part in space.parts.items():
            yield from leaves(part, f"{prefix}.{name}" if prefix else name)
    else:
        yield prefix, space


def describe(space: Space) -> str:
    """Return a space in a few words, for messages."""
    if isinstance(space, Composite):
        return "{" + ", ".join(f"{name}: {describe(part)}" for name, part in space.parts.items()) + "}"
    if isinstance(space, Box):
        return f"Box{list(space.shape)} {space.dtype}"
    if isinstance(space, Discrete):
        return f"Discrete({space.n})"
    return f"MultiDiscrete({list(space.choices)})"


@dataclass(frozen=True)
class Spaces:
    """The observation and action space of an environment, one env, and what its rewards are.

    rewards: numbers in the reward of a step; 0 = it is a plain number.
    """

    observation: Space
    action: Space
    rewards: int = 0


ACTION_MASK = "action_mask"  # a part of observations: a flag for each choice, whether it is allowed


def without_mask(space: Space) -> Space:
    """Return what networks see of an observation: all but its action mask."""
    if not isinstance(space, Composite) or ACTION_MASK not in space.parts or len(space.parts) == 1:
        return space
    return Composite({name: part for name, part in space.parts.items() if name != ACTION_MASK})


def with_parts(space: Space, names: Sequence[str | int], *, place: str) -> Space:
    """Return a space with some of its parts: leaves by their paths, or all leaves below a name.

    Trees of the whole space are trees of this one, too: `leaves_of` finds the parts by their names.

    Raises:
        SpaceError: there is no part of a name, or no name; the message begins with `place`.
    """
    known = [path for path, _ in leaves(space)]
    below = {str(name): [path for path in known if f"{path}.".startswith(f"{name}.")] for name in names}
    missing = next((name for name, paths in below.items() if not paths), None)
    if missing is not None or not below or not isinstance(space, Composite):
        there = f"there are {', '.join(known)}" if isinstance(space, Composite) else f"{describe(space)} has none"
        near = "" if missing is None else did_you_mean(missing, known)
        raise SpaceError(f"{place}: wanted parts of observations, got {[*names]}{near}; {there}")
    chosen = {path for paths in below.values() for path in paths}

    def pruned(space: Composite, prefix: str) -> Composite:
        parts: dict[str, Space] = {}
        for name, part in space.parts.items():
            if any(f"{path}.".startswith(f"{prefix}{name}.") for path in chosen):
                parts[name] = pruned(part, f"{prefix}{name}.") if isinstance(part, Composite) else part
        return Composite(parts)

    return pruned(space, "")


def map_tree(function: Callable[..., Any], *trees: Tree) -> Tree:
    """Apply a function leaf by leaf to trees of the same form."""
    if isinstance(trees[0], Mapping):
        return {name: map_tree(function, *(tree[name] for tree in trees)) for name in trees[0]}
    return function(*trees)


def put_rows(target: Tree, rows: Any, source: Tree) -> None:
    """Write `source` [n, …] into the rows of a tree that an index, a slice or a boolean array names."""
    if isinstance(target, dict):
        for name, part in target.items():
            put_rows(part, rows, source[name])
    else:
        target[rows] = source


def take_rows(tree: Tree, rows: Any) -> Tree:
    """Return the rows of a tree that a number, an index, a slice or a boolean array names."""
    if isinstance(tree, dict):
        return {name: take_rows(part, rows) for name, part in tree.items()}
    return tree[rows]


def rows_equal(first: Tree, second: Tree) -> Array:
    """Return for each row [N] whether two trees of arrays [N, …] are equal."""
    if isinstance(first, dict):
        parts = [rows_equal(part, second[name]) for name, part in first.items()]
        return np.all(parts, axis=0)  # type: ignore[no-any-return]
    equal: Array = (first == second).reshape(len(first), -1).all(1)
    return equal


def require_like(wanted: Array | None, saved: Any) -> None:
    """Refuse a saved value, unless it is an array of the shape and the kind of numbers of another, or both are None.

    Raises:
        RlrunError: naming both forms.
    """
    forms = [
        (value.shape, value.dtype.kind) if isinstance(value, np.ndarray) else type(value).__name__
        for value in (saved, wanted)
    ]
    if forms[0] != forms[1]:
        raise RlrunError(f"it has {forms[0]}, wanted {forms[1]}")


def leaves_of(space: Space, tree: Tree) -> list[Any]:
    """Return the tensors of a tree in the order of `leaves`."""
    if not isinstance(space, Composite):
        return [tree]
    return [leaf for name, part in space.parts.items() for leaf in leaves_of(part, tree[name])]


def tree_of(space: Space, tensors: Iterable[Any]) -> Tree:
    """Put tensors, given in the order of the leaves, back into a tree."""
    remaining = iter(tensors)
    if not isinstance(space, Composite):
        return next(remaining)
    return {name: tree_of(part, remaining) for name, part in space.parts.items()}


def row_count(tree: Tree) -> int:
    """Return n of a tree [n, …]."""
    while isinstance(tree, Mapping):
        tree = next(iter(tree.values()))
    count: int = tree.shape[0]  # which int() would fix, where an export leaves it open
    return count


def require_discrete(space: Space, place: str) -> None:
    """Refuse an action space with a continuous part, in the name of `place`.

    Raises:
        SpaceError: some leaf is a Box.
    """
    _refuse_leaves(space, f"{place} handles discrete actions only", lambda leaf: isinstance(leaf, Box))


def require_continuous(space: Space, place: str) -> None:
    """Refuse an action space with choices, in the name of `place`.

    Raises:
        SpaceError: some leaf is no Box.
    """
    _refuse_leaves(space, f"{place} handles continuous actions only", lambda leaf: not isinstance(leaf, Box))


def _refuse_leaves(space: Space, reason: str, is_wrong: Callable[[Leaf], bool]) -> None:
    for path, leaf in leaves(space):
        if is_wrong(leaf):
            where = f"action part '{path}'" if path else "the action space"
            raise SpaceError(f"{reason}; {where} is {describe(leaf)} (algorithm=sac handles both)")

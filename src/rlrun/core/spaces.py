"""Observation and action spaces, independent of any environment library.

Observations and actions are *trees*: an array for a single space, a dict of trees for
composite ones (the parts of a Tuple are named "0", "1", …). Inside `rlrun` actions are
*policy actions*: Box actions are in [-1, 1], Discrete ones start at 0. The environment
layer maps them to what the environment expects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from rlrun.core.errors import ConfigError, RlrunError, SpaceError, did_you_mean, require_one_of
from rlrun.core.images import AXES, LAYOUTS, Picture, guessed_rows, picture_of, unit_range, useful
from rlrun.core.typing import Array, Tree

FIRST = 0  # `Box.frame_axis`: stacked frames have the first axis for themselves


@dataclass(frozen=True)
class Box:
    """Real numbers or an image, with bounds (infinite where there are none).

    layout: of an image, one of `rlrun.core.images.LAYOUTS`.
    frame_axis: axis along which stacked frames are joined, from the end; `FIRST` = they have a first axis of their own;
        None = unknown.
    """

    shape: tuple[int, ...]
    low: Array
    high: Array
    dtype: str = "float32"
    layout: str = "auto"
    frame_axis: int | None = None

    @property
    def size(self) -> int:
        """Width of the flat network input."""
        return int(np.prod(self.shape))

    @property
    def bounded(self) -> bool:
        return bool(np.isfinite(self.low).all() and np.isfinite(self.high).all())

    @cached_property
    def picture(self) -> Picture | None:
        """The axes of height, width and channels; None if the array is not an image."""
        return picture_of(self.shape, self.dtype, self.low, self.high, self.layout)

    @property
    def image(self) -> bool:
        return self.picture is not None

    @property
    def settled_layout(self) -> str:
        """The layout that `layout` names, or a guess. An array of two dimensions that is not an image is a signal."""
        if self.picture is not None:
            return self.picture.name
        if len(self.shape) != 2 or self.layout == "vector":
            return "vector"
        if self.layout != "auto":
            return self.layout
        return "channels_last" if self.shape[1] <= self.shape[0] else "channels_first"

    @property
    def channel_axis(self) -> int:
        """The axis of the channels of an array of three axes, from the end; a guess where it is not an image."""
        picture = self.picture or Picture(self.shape, guessed_rows(self.shape, self.low, self.high))
        return -3 if picture.rows else -1

    @cached_property
    def unit_range(self) -> tuple[Any, Any]:
        """Offset and factor that scale whole numbers to [0, 1]; see `images.unit_range`."""
        return unit_range(self.dtype, self.low, self.high)

    @property
    def in_unit(self) -> bool:
        """Whether the numbers that networks read lie in [0, 1], by the bounds."""
        if np.dtype(self.dtype).kind == "f":
            return bool((self.low >= 0.0).all() and (self.high <= 1.0).all())
        return bool(useful(self.dtype, self.low, self.high).all())


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
    """The observation and action space of one environment, and the form of its rewards.

    rewards: numbers in the reward of a step; 0 = a scalar.
    """

    observation: Space
    action: Space
    rewards: int = 0


ACTION_MASK = "action_mask"  # a part of observations: a flag for each choice, whether it is allowed
RULES_STATE = "rules_state"  # likewise, the bytes of a game's position, from which a search goes on
UNSEEN = (ACTION_MASK, RULES_STATE)


def without_mask(space: Space) -> Space:
    """Return the space that networks see: observations without their action mask and state of a game's rules."""
    if not isinstance(space, Composite) or not space.parts.keys() - UNSEEN or not space.parts.keys() & {*UNSEEN}:
        return space
    return Composite({name: part for name, part in space.parts.items() if name not in UNSEEN})


def with_parts(space: Space, names: Sequence[str | int], *, place: str) -> Space:
    """Return the space of some parts: leaves by their paths, or all leaves below a name.

    Trees of the whole space fit this one, too: `leaves_of` finds the parts by their names.

    Raises:
        SpaceError: a name has no part, or there are no names; the message begins with `place`.
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


def laid_out(space: Space, layout: str | Mapping[str, str]) -> Space:
    """Return a space whose images have a layout.

    Args:
        space: of observations.
        layout: one of `rlrun.core.images.LAYOUTS` for all parts with enough dimensions; or one for each path.

    Raises:
        ConfigError: there is no such layout or path, or a part has too few dimensions.
    """
    boxes = {path: leaf for path, leaf in leaves(space) if isinstance(leaf, Box)}
    if isinstance(layout, str):
        require_one_of("encoder.layout", layout, LAYOUTS)
        if layout == "auto":
            return space
        axes = {path: len(leaf.shape) for path, leaf in boxes.items()}
        wanted = {"gray": (2,), "vector": range(2, 99), "stack_last": range(4, 99)}.get(layout, range(3, 99))
        chosen = [path for path in axes if axes[path] in wanted]
        if layout.startswith("channels"):
            chosen = chosen or [path for path in axes if axes[path] == 2]  # signals
        if not chosen:
            raise ConfigError(f"encoder.layout: no part of the observation can be {layout}: {describe(space)}")
        layout = dict.fromkeys(chosen, layout)
    for path, name in layout.items():
        require_one_of(f"encoder.layout.{path}", name, LAYOUTS)
        if path not in boxes:
            there = f"no part '{path}' with numbers in {describe(space)}{did_you_mean(path, boxes)}"
            raise ConfigError(f"encoder.layout: there is {there}")
        least = 2 if name.startswith("channels") else AXES.get(name, 0)
        if len(boxes[path].shape) < least or (name == "gray" and len(boxes[path].shape) > 2):
            raise ConfigError(f"encoder.layout: {path or 'the observation'} {describe(boxes[path])} cannot be {name}")
    known = [
        replace(leaf, layout=layout[path]) if isinstance(leaf, Box) and path in layout else leaf
        for path, leaf in leaves(space)
    ]
    return with_leaves(space, iter(known))


def describe_layouts(space: Space) -> list[str]:
    """Return a line for each part of an observation with two or more dimensions: its image's sides and channels."""
    lines = []
    for path, leaf in leaves(without_mask(space)):
        if not isinstance(leaf, Box) or len(leaf.shape) < 2:
            continue
        if leaf.picture is not None:
            sides = " × ".join(map(str, leaf.picture.sides))
            text = f"an image of {sides} with {leaf.picture.channels} channel{'s'[: leaf.picture.channels - 1]}"
        else:
            text = f"no image, {leaf.size} numbers"
        shape = " × ".join(map(str, leaf.shape))
        lines.append(f"{path or 'observations'} of {shape}: {text} ({leaf.settled_layout}; encoder.layout changes it)")
    return lines


def with_leaves(space: Space, parts: Iterator[Leaf]) -> Space:
    """Return a space of the same form with other leaves, in the order of `leaves`."""
    if isinstance(space, Composite):
        return Composite({name: with_leaves(part, parts) for name, part in space.parts.items()})
    return next(parts)


def map_tree(function: Callable[..., Any], *trees: Tree) -> Tree:
    """Apply a function leaf by leaf to trees of the same form."""
    if isinstance(trees[0], Mapping):
        return {name: map_tree(function, *(tree[name] for tree in trees)) for name in trees[0]}
    return function(*trees)


def stack(trees: list[Tree]) -> Tree:
    """Return trees of arrays […] as one tree [L, …]."""
    return map_tree(lambda *leaves: np.stack(leaves), *trees)


def flat(tree: Tree, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of a tree by dotted name."""
    if not isinstance(tree, Mapping):
        return {prefix: tree}
    leaves: dict[str, Any] = {}
    for name, part in tree.items():
        leaves |= flat(part, f"{prefix}.{name}" if prefix else str(name))
    return leaves


def nest(leaves: Mapping[str, Any]) -> dict[str, Tree]:
    """Return leaves by dotted name as a tree."""
    tree: dict[str, Any] = {}
    for name, leaf in leaves.items():
        *above, last = name.split(".")
        node = tree
        for key in above:
            node = node.setdefault(key, {})
        node[last] = leaf
    return tree


def put_rows(target: Tree, rows: Any, source: Tree) -> None:
    """Write `source` [n, …] into rows of a tree; `rows` is an index, a slice or a boolean array."""
    if isinstance(target, dict):
        for name, part in target.items():
            put_rows(part, rows, source[name])
    else:
        target[rows] = source


def take_rows(tree: Tree, rows: Any) -> Tree:
    """Return rows of a tree; `rows` is a number, an index, a slice or a boolean array."""
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
    """Refuse a saved array whose shape or kind of numbers differs from the wanted one's; both may be None.

    Raises:
        RlrunError: naming both.
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
    count: int = tree.shape[0]  # int() would fix the size, which an export leaves open
    return count


def require_discrete(space: Space, place: str) -> None:
    """Refuse an action space with a continuous part; the message begins with `place`.

    Raises:
        SpaceError: some leaf is a Box.
    """
    _refuse_leaves(space, f"{place} handles discrete actions only", lambda leaf: isinstance(leaf, Box))


def require_continuous(space: Space, place: str) -> None:
    """Refuse an action space with choices; the message begins with `place`.

    Raises:
        SpaceError: some leaf is not a Box.
    """
    _refuse_leaves(space, f"{place} handles continuous actions only", lambda leaf: not isinstance(leaf, Box))


def _refuse_leaves(space: Space, reason: str, is_wrong: Callable[[Leaf], bool]) -> None:
    for path, leaf in leaves(space):
        if is_wrong(leaf):
            where = f"action part '{path}'" if path else "the action space"
            raise SpaceError(f"{reason}; {where} is {describe(leaf)} (algorithm=sac handles both)")

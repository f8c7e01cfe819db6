"""Trees of tensors: an array or nested dicts of arrays, in the order of the space's leaves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

from rlrun.core.spaces import Composite, Space
from rlrun.core.typing import Tree


def leaves_of(space: Space, tree: Tree) -> list[Tensor]:
    """Return the tensors of a tree in the order of `rlrun.core.spaces.leaves`."""
    if not isinstance(space, Composite):
        return [tree]
    return [leaf for name, part in space.parts.items() for leaf in leaves_of(part, tree[name])]


def tree_of(space: Space, tensors: Iterable[Any]) -> Tree:
    """Put tensors, given in the order of the leaves, back into a tree."""
    return _take(space, iter(tensors))


def _take(space: Space, tensors: Iterator[Any]) -> Tree:
    if not isinstance(space, Composite):
        return next(tensors)
    return {name: _take(part, tensors) for name, part in space.parts.items()}

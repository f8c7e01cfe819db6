"""Spaces read off what a memory was stored in, where there is no environment to ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlrun.errors import RequestError
from rlrun.memory.dataset import table_of
from rlrun.memory.episodes import Stored, nest
from rlrun.spaces import Box, Composite, Discrete, Leaf, MultiDiscrete, Space, Spaces, describe
from rlrun.typing import Array

PIXELS = "uint8"


def spaces_in(source: str | Sequence[str]) -> Spaces:
    """Return the spaces of the rows in a file, or of `minari:DATASET`, or of several that agree.

    Numbers are without bounds, but for actions, which a memory holds between -1 and 1. Of choices there are as many as
    the largest that was stored tells, in whichever source.

    Raises:
        RequestError: a source is missing or damaged, holds no observations or actions, or others than the first one.
    """
    first, *others = [source] if isinstance(source, str) else source
    found = _spaces_of(first)
    for other in others:
        here = _spaces_of(other)
        if found.rewards != here.rewards:
            counts = [each.rewards or "one" for each in (here, found)]
            raise RequestError(f"{other}: it has {counts[0]} rewards a step, and {first} has {counts[1]}")
        both = {}
        for name in ("observation", "action"):
            one, same = getattr(found, name), getattr(here, name)
            both[name] = _joined(one, same)
            if both[name] is None:
                told = f"{name}s are {describe(same)}, and those of {first} are {describe(one)}"
                raise RequestError(f"{other}: its {told}; what one run learns from has the same spaces")
        found = Spaces(both["observation"], both["action"], found.rewards)
    return found


def _spaces_of(source: str) -> Spaces:
    """Return the spaces of one source."""
    table = table_of(source)
    held = Stored.of(table)
    rows = held.row_slots()
    found: dict[str, Any] = {}
    for name in table.storage.columns:
        root = name.partition(".")[0]
        if root in ("observation", "action") and len(rows):
            found[name] = _leaf(held.leaf(name, rows), action=root == "action")
    spaces = {name: _space(tree) for name, tree in nest(found).items()}
    if len(spaces) < 2:
        raise RequestError(f"{source}: it holds {', '.join(spaces) or 'no rows'}; wanted observations and actions")
    rewards = table.storage.columns["reward"].shape if "reward" in table.storage.columns else ()
    return Spaces(spaces["observation"], spaces["action"], *rewards)


def _joined(one: Space, other: Space) -> Any:
    """Return the space that both are part of, for each choice the larger number of them; None if there is none."""
    if isinstance(one, Composite) and isinstance(other, Composite):
        if one.parts.keys() != other.parts.keys():
            return None
        parts = {name: _joined(part, other.parts[name]) for name, part in one.parts.items()}
        return None if None in parts.values() else Composite(parts)
    if type(one) is not type(other) or isinstance(one, Composite) or isinstance(other, Composite):
        return None
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return None
    if isinstance(one, Discrete) and isinstance(other, Discrete):
        return Discrete(max(one.n, other.n))
    if isinstance(one, MultiDiscrete) and isinstance(other, MultiDiscrete):
        return MultiDiscrete(np.maximum(one.nvec, other.nvec), one.start)
    return one


def _leaf(values: Array, *, action: bool) -> Leaf:
    """Return the space of the values [R, …] of a column."""
    shape, kind = values.shape[1:], values.dtype
    if kind.name == PIXELS:
        return Box(shape, np.zeros(shape, kind), np.full(shape, 255, kind), PIXELS)
    if np.issubdtype(kind, np.floating):
        bound = np.ones(shape, np.float32) if action else np.full(shape, np.inf, np.float32)
        return Box(shape, -bound, bound)
    largest = values.max(0).astype(np.int64)
    return MultiDiscrete(largest + 1, np.zeros_like(largest)) if shape else Discrete(int(largest) + 1)


def _space(tree: Any) -> Space:
    return Composite({name: _space(part) for name, part in tree.items()}) if isinstance(tree, dict) else tree

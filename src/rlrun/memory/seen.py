"""Spaces read off what a memory was stored in, where there is no environment to ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlrun.errors import RequestError
from rlrun.memory.dataset import table_of
from rlrun.memory.episodes import Stored, nest
from rlrun.spaces import Box, Composite, Discrete, Leaf, MultiDiscrete, Space, Spaces
from rlrun.typing import Array

PIXELS = "uint8"


def spaces_in(source: str | Sequence[str]) -> Spaces:
    """Return the spaces of the rows in a file, or of `minari:DATASET`; of several sources those of the first.

    Numbers are without bounds, but for actions, which a memory holds between -1 and 1. Of choices there are as many as
    the largest that was stored tells.

    Raises:
        RequestError: it is missing or damaged, or holds no observations or actions.
    """
    first = source if isinstance(source, str) else source[0]
    table = table_of(first)
    held = Stored.of(table)
    rows = held.row_slots()
    found: dict[str, Any] = {}
    for name in table.storage.columns:
        root = name.partition(".")[0]
        if root in ("observation", "action") and len(rows):
            found[name] = _leaf(held.leaf(name, rows), action=root == "action")
    spaces = {name: _space(tree) for name, tree in nest(found).items()}
    if len(spaces) < 2:
        raise RequestError(f"{first}: it holds {', '.join(spaces) or 'no rows'}; wanted observations and actions")
    rewards = table.storage.columns["reward"].shape if "reward" in table.storage.columns else ()
    return Spaces(spaces["observation"], spaces["action"], *rewards)


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

"""How large the numbers are that a policy is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rlrun.collect.agents import to_arrays, to_tensors
from rlrun.nn import Normaliser
from rlrun.spaces import Box, Composite, Space
from rlrun.typing import Array, Tree


@torch.no_grad()
def observed(tree: Tree, space: Space, preprocess: Sequence[Any] = ()) -> dict[str, float]:
    """Return the root mean square of observations [N, …] as a metric, after normalisers and before any network.

    Images and choices do not count. Nothing is said where there is nothing else, or where something beside
    normalisers is done to observations first.
    """
    if not all(isinstance(function, Normaliser) for function in preprocess):
        return {}
    if preprocess:
        seen = to_tensors(tree, _device(preprocess[0]))
        for normaliser in preprocess:
            seen = normaliser(seen)
        tree = to_arrays(seen)
    parts = _numbers(tree, space)
    count = sum(part.size for part in parts)
    if not count:
        return {}
    total = sum(float((part.astype(float) ** 2).sum()) for part in parts)
    return {"observation/size": (total / count) ** 0.5}


def _numbers(tree: Tree, space: Space) -> list[Array]:
    if isinstance(space, Composite):
        return [part for name, below in space.parts.items() for part in _numbers(tree[name], below)]
    return [tree] if isinstance(space, Box) and not space.image else []


def _device(normaliser: Normaliser) -> torch.device:
    return next((buffer.device for buffer in normaliser.buffers()), torch.device("cpu"))

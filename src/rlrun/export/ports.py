"""What goes into an exported policy and what comes out, and how both relate to the trees inside.

A client deals in the environment's own numbers: choices counted from `start`, actions within the bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from torch import Tensor

from rlrun.env.spaces import from_gymnasium
from rlrun.spaces import leaves

Role = Literal["observation", "state", "epsilon", "gumbel", "action", "next_state"]
Convert = Callable[[Tensor], Tensor]
UNKNOWN = ("uint16", "uint32", "uint64")  # to torch's exporter


@dataclass(frozen=True)
class Port:
    """An input or output.

    Attributes:
        name: in the file; the part of a composite space follows a dot.
        role: what it stands for.
        shape: of one lane; the file has the number of lanes in front.
        dtype: as numpy names it.
        space: what is known of the numbers: kind, bounds, number of choices, where counting starts.
    """

    name: str
    role: Role
    shape: tuple[int, ...]
    dtype: str
    space: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return what FILE.json says of it."""
        return {"name": self.name, "role": self.role, "shape": list(self.shape), "dtype": self.dtype, **self.space}


def named(role: str, path: str) -> str:
    """Return the name of a part, as in `observation.camera`."""
    return f"{role}.{path}" if path else role


def observations(space: gymnasium.Space[Any]) -> list[tuple[Port, Convert]]:
    """Return the inputs that an observation comes by, each with what makes it what networks read."""
    pairs = []
    ours = dict(leaves(from_gymnasium(space, "the observation space")))
    for path, leaf in walk(space):
        inside = getattr(torch, ours[path].dtype)
        dtype = ours[path].dtype if leaf.dtype.name in UNKNOWN else leaf.dtype.name
        start = getattr(leaf, "start", None)
        port = Port(named("observation", path), "observation", tuple(leaf.shape), dtype, about(leaf))
        pairs.append((port, _reader(inside, start if start is not None and np.any(start) else None)))
    return pairs


def _reader(dtype: torch.dtype, start: Any) -> Convert:
    if start is None:
        return lambda value: value.to(dtype)
    first = torch.as_tensor(np.asarray(start))
    return lambda value: (value - first).to(dtype)


def actions(space: gymnasium.Space[Any]) -> list[tuple[Port, Convert]]:
    """Return the outputs that an action consists of, each with what makes it of a policy's own action."""
    pairs = []
    for path, leaf in walk(space):
        whole = not isinstance(leaf, gymnasium.spaces.Box) or leaf.dtype.kind in "iu"
        dtype = "int64" if whole else leaf.dtype.name
        port = Port(named("action", path), "action", tuple(leaf.shape), dtype, about(leaf))
        pairs.append((port, _box_writer(leaf) if isinstance(leaf, gymnasium.spaces.Box) else _choice_writer(leaf)))
    return pairs


def _choice_writer(space: Any) -> Convert:
    start = torch.as_tensor(np.asarray(getattr(space, "start", 0)), dtype=torch.int64)
    return lambda action: action.to(torch.int64) + start


def _box_writer(space: gymnasium.spaces.Box) -> Convert:
    """Return what maps [-1, 1] to the bounds; rounding never leaves them."""
    whole = space.dtype.kind in "iu"  # type: ignore[union-attr]
    dtype = torch.float64 if whole else getattr(torch, space.dtype.name)  # type: ignore[union-attr]
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        return lambda action: action.to(torch.int64 if whole else dtype)
    low, high = (torch.as_tensor(bound.astype(np.float64)) for bound in (space.low, space.high))
    half, middle = 0.5 * high - 0.5 * low, 0.5 * high + 0.5 * low  # no overflow for huge bounds
    low, high, half, middle = (bound.to(dtype) for bound in (low, high, half, middle))
    if whole:
        return lambda action: ((action * half + middle).round().clamp(low, high)).to(torch.int64)
    return lambda action: torch.minimum(torch.maximum(action.to(dtype) * half + middle, low), high)


def walk(space: gymnasium.Space[Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a space with their paths; the parts of a Tuple are named "0", "1", …."""
    parts: dict[str, Any] = {}
    if isinstance(space, gymnasium.spaces.Dict):
        parts = dict(space.spaces)
    elif isinstance(space, gymnasium.spaces.Tuple):
        parts = {str(index): part for index, part in enumerate(space.spaces)}
    else:
        yield prefix, space
    for name, part in parts.items():
        yield from walk(part, f"{prefix}.{name}" if prefix else name)


def about(space: Any) -> dict[str, Any]:
    """Return what is known of the numbers of a leaf, for FILE.json."""
    kind = type(space).__name__
    if isinstance(space, gymnasium.spaces.Box):
        return {"kind": kind, "low": _listed(space.low), "high": _listed(space.high), "env_dtype": space.dtype.name}  # type: ignore[union-attr]
    known: dict[str, Any] = {"kind": kind, "env_dtype": space.dtype.name}
    if isinstance(space, gymnasium.spaces.Discrete):
        return {**known, "n": int(space.n), "start": int(space.start)}
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        return {**known, "n": space.nvec.tolist(), "start": space.start.tolist()}
    return known


def _listed(bounds: Any) -> Any:
    """Return a bound as one number where it is the same everywhere, else as a list; infinite ones as null."""
    plain = [value if math.isfinite(value) else None for value in bounds.astype(np.float64).reshape(-1).tolist()]
    return plain[0] if len(set(plain)) == 1 else np.array(plain, dtype=object).reshape(bounds.shape).tolist()

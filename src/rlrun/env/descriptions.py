"""Spaces of an environment as JSON, so that a policy acts where its environment is not made."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rlrun.core.errors import RunDirError
from rlrun.core.spaces import Spaces
from rlrun.env.spaces import OuterSpaces, from_gymnasium, parts_of

MOST = 10_000  # different bounds of a leaf; beyond that, nothing is recorded


def walk(space: gymnasium.Space[Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a space with their paths; the parts of a Tuple are named "0", "1", …."""
    parts = parts_of(space)
    if not parts:
        yield prefix, space
    for name, part in parts.items():
        yield from walk(part, f"{prefix}.{name}" if prefix else name)


def containers(space: gymnasium.Space[Any]) -> Any:
    """Return what the values are put into: a dict by name, a list for a tuple, None for an array."""
    if isinstance(space, spaces.Dict):
        return {name: containers(part) for name, part in space.spaces.items()}
    return [containers(part) for part in space.spaces] if isinstance(space, spaces.Tuple) else None


def describe_leaf(space: Any) -> dict[str, Any]:
    """Return what is known of the numbers of a leaf."""
    kind = type(space).__name__
    if isinstance(space, spaces.Box):
        return {"kind": kind, "low": _listed(space.low), "high": _listed(space.high), "env_dtype": space.dtype.name}  # type: ignore[union-attr]
    known: dict[str, Any] = {"kind": kind, "env_dtype": space.dtype.name}
    if isinstance(space, spaces.Discrete):
        return {**known, "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {**known, "n": space.nvec.tolist(), "start": space.start.tolist()}
    return known


def _listed(bounds: Any) -> Any:
    """Return a bound as one number where it is the same everywhere, else as a list; infinite ones as null."""
    plain = [value if math.isfinite(value) else None for value in bounds.astype(np.float64).reshape(-1).tolist()]
    return plain[0] if len(set(plain)) == 1 else np.array(plain, dtype=object).reshape(bounds.shape).tolist()


def describe_env(env: Any) -> dict[str, Any] | None:
    """Return the spaces of an environment for the manifest of a run; None if it has none, or very many bounds."""
    described = {}
    for role, space in zip(("observation", "action"), getattr(env, "outer", None) or (), strict=False):
        parts = {path: {"shape": list(leaf.shape), **describe_leaf(leaf)} for path, leaf in walk(space)}
        if any(np.size(value) > MOST for part in parts.values() for value in part.values()):
            return None
        described[role] = {"containers": containers(space), "parts": parts}
    return {**described, "rewards": env.spaces.rewards} if described else None


def space_of(forms: Any, parts: Mapping[str, Any], place: str, path: str = "") -> gymnasium.Space[Any]:
    """Return the space that descriptions of its leaves say; the inverse of `containers` and `describe_leaf`.

    Raises:
        RunDirError: they are damaged; the message names `place`.
    """
    prefix = f"{path}." if path else ""
    if isinstance(forms, Mapping):
        named = [(name, space_of(form, parts, place, f"{prefix}{name}")) for name, form in forms.items()]
        return spaces.Dict(named)  # a dict would be sorted, and networks read the parts in their order
    if isinstance(forms, list):
        return spaces.Tuple([space_of(form, parts, place, f"{prefix}{index}") for index, form in enumerate(forms)])
    try:
        return _leaf(parts[path])
    except Exception as error:
        raise RunDirError(f"{place} is damaged: it does not describe the space '{path}'") from error


def _leaf(part: Mapping[str, Any]) -> gymnasium.Space[Any]:
    kind, shape = part["kind"], tuple(part["shape"])
    if kind == "Discrete":
        return spaces.Discrete(part["n"], start=part["start"])
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(part["n"], dtype=part["env_dtype"], start=part["start"])
    if kind == "MultiBinary":
        return spaces.MultiBinary(shape)
    low, high = (
        np.where(np.isnan(bound), limit, bound)
        for bound, limit in ((np.array(part["low"], float), -np.inf), (np.array(part["high"], float), np.inf))
    )
    low, high = (np.broadcast_to(bound, shape).astype(part["env_dtype"]) for bound in (low, high))
    return spaces.Box(low, high, shape, np.dtype(part["env_dtype"]).type)


class RecordedSpaces(OuterSpaces):
    """What parts read of an environment that is not made.

    Args:
        about: what `describe_env` returned, from a manifest.
        place: the manifest.

    Raises:
        RunDirError: it is damaged.
    """

    frame_stack = num_envs = 1

    def __init__(self, about: Any, place: str) -> None:
        try:
            forms = [(about[role]["containers"], dict(about[role]["parts"])) for role in ("observation", "action")]
            rewards = int(about["rewards"])
        except (TypeError, LookupError, ValueError) as error:
            raise RunDirError(f"{place} is damaged: it does not describe the spaces") from error
        observation, action = (space_of(form, parts, place) for form, parts in forms)
        self.outer = observation, action
        self.spaces = Spaces(
            from_gymnasium(observation, "the observation space"),
            from_gymnasium(action, "the action space", action=True),
            rewards,
        )

    def close(self) -> None:
        """Do nothing: there is no environment."""

"""Spaces of an environment as JSON, so that a policy can act without its environment."""

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rlrun.core.errors import ConfigError, RunDirError
from rlrun.core.spaces import Box, Spaces, laid_out, leaves
from rlrun.env.spaces import OuterSpaces, from_gymnasium, parts_of, to_gymnasium

KINDS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
MOST = 10_000  # different bounds of a leaf; spaces with more are not recorded


def walk(space: gymnasium.Space[Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a space with their paths; the parts of a Tuple are named "0", "1", …."""
    parts = parts_of(space)
    if not parts:
        yield prefix, space
    for name, part in parts.items():
        yield from walk(part, f"{prefix}.{name}" if prefix else name)


def containers(space: gymnasium.Space[Any]) -> Any:
    """Return the containers of a space's values: a dict by name, a list for a tuple, None for an array."""
    if isinstance(space, spaces.Dict):
        return {name: containers(part) for name, part in space.spaces.items()}
    return [containers(part) for part in space.spaces] if isinstance(space, spaces.Tuple) else None


def describe_leaf(space: Any) -> dict[str, Any]:
    """Return kind, dtype and bounds or choices of a leaf."""
    kind = next((kind.__name__ for kind in KINDS if isinstance(space, kind)), type(space).__name__)
    if isinstance(space, spaces.Box):
        return {"kind": kind, "low": _listed(space.low), "high": _listed(space.high), "env_dtype": space.dtype.name}  # type: ignore[union-attr]
    known: dict[str, Any] = {"kind": kind, "env_dtype": space.dtype.name}
    if isinstance(space, spaces.Discrete):
        return {**known, "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {**known, "n": space.nvec.tolist(), "start": space.start.tolist()}
    return known


def _listed(bounds: Any) -> Any:
    """Return a bound as one number if all are equal, else as a list; infinite ones as null."""
    numbers = bounds.reshape(-1)
    numbers = numbers[:1] if (numbers == numbers[:1]).all() else numbers  # saves a loop over an image's pixels
    plain = [value if math.isfinite(value) else None for value in numbers.tolist()]
    return plain[0] if len(set(plain)) == 1 else np.array(plain, dtype=object).reshape(bounds.shape).tolist()


def describe_env(env: Any) -> dict[str, Any] | None:
    """Return the spaces of an environment for the manifest of a run, as `describe_outer` does; None if it has none."""
    outer = getattr(env, "outer", None)
    return describe_outer(outer, env.spaces) if outer else None


def describe_spaces(spaces: Spaces) -> dict[str, Any] | None:
    """Return spaces of rlrun as `describe_outer` does, for a run without an environment, and for a stored memory."""
    outer = to_gymnasium(spaces.observation, tuples=True), to_gymnasium(spaces.action, tuples=True)
    return describe_outer(outer, spaces)


def describe_outer(outer: tuple[gymnasium.Space[Any], gymnasium.Space[Any]], inner: Spaces) -> dict[str, Any] | None:
    """Return observation and action spaces, and the number of rewards of a step, in the form of `RecordedSpaces`.

    `inner` are the same spaces in rlrun's form; their observations have the layouts of images.

    None if they have very many bounds, or if the description does not restore the same space.
    """
    described = {}
    for role, space in zip(("observation", "action"), outer, strict=True):
        parts = {path: {"shape": list(leaf.shape), **describe_leaf(leaf)} for path, leaf in walk(space)}
        if any(np.size(value) > MOST for part in parts.values() for value in part.values()):
            return None
        if role == "observation":
            for path, leaf in leaves(inner.observation):
                if isinstance(leaf, Box) and leaf.layout != "auto":
                    parts[path]["layout"] = leaf.layout
        forms = containers(space)
        with suppress(RunDirError):
            if space_of(forms, parts, role) == space:
                described[role] = {"containers": forms, "parts": parts}
                continue
        return None
    return {**described, "rewards": inner.rewards}


def space_of(forms: Any, parts: Mapping[str, Any], place: str) -> gymnasium.Space[Any]:
    """Return the space from its containers and the descriptions of its leaves.

    Raises:
        RunDirError: they are damaged; the message names `place`.
    """
    try:
        return _space(forms, parts, "")
    except Exception as error:
        raise RunDirError(f"{place} is damaged: it does not describe the spaces") from error


def _space(forms: Any, parts: Mapping[str, Any], path: str) -> gymnasium.Space[Any]:
    if not isinstance(forms, Mapping | list):
        return _leaf(parts[path])
    if not forms:
        raise ValueError("a container without parts")
    prefix = f"{path}." if path else ""
    if isinstance(forms, list):
        return spaces.Tuple([_space(form, parts, f"{prefix}{index}") for index, form in enumerate(forms)])
    # a dict would be sorted, and networks read the parts in their order
    return spaces.Dict([(name, _space(form, parts, f"{prefix}{name}")) for name, form in forms.items()])


def _leaf(part: Mapping[str, Any]) -> gymnasium.Space[Any]:
    kind, shape, dtype = part["kind"], tuple(part["shape"]), np.dtype(part.get("env_dtype", "int64"))
    if kind == "Discrete":
        return spaces.Discrete(part["n"], start=part["start"], dtype=dtype.type)
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(part["n"], dtype=dtype.type, start=part["start"])
    if kind == "MultiBinary":
        return spaces.MultiBinary(shape if len(shape) > 1 else shape[0])
    bounds: list[Any] = []
    for bound, limit in ((part["low"], -np.inf), (part["high"], np.inf)):
        if dtype.kind == "f":
            array = np.array(bound, float)
            array[np.isnan(array)] = limit  # null in JSON
        else:
            array = np.array(bound, dtype)  # whole numbers beyond 2^53 are no floats
        bounds.append(np.broadcast_to(array, shape).astype(dtype))
    low, high = bounds
    return spaces.Box(low, high, shape, dtype.type)


class RecordedSpaces(OuterSpaces):
    """Stands in for an environment that is not made, with its spaces from a manifest.

    Args:
        about: result of `describe_env`, from a manifest.
        place: the manifest.

    Raises:
        RunDirError: it is damaged.
    """

    frame_stack = num_envs = 1

    def __init__(self, about: Any, place: str) -> None:
        try:
            forms = [(about[role]["containers"], dict(about[role]["parts"])) for role in ("observation", "action")]
            rewards = int(about["rewards"])
        except (TypeError, LookupError, ValueError, OverflowError) as error:
            raise RunDirError(f"{place} is damaged: it does not describe the spaces") from error
        observation, action = (space_of(form, parts, place) for form, parts in forms)
        self.outer = observation, action
        layouts = {path: part["layout"] for path, part in forms[0][1].items() if "layout" in part}
        try:
            inner = laid_out(from_gymnasium(observation, "the observation space"), layouts)
        except ConfigError as error:
            raise RunDirError(f"{place} is damaged: {error}") from error
        self.spaces = Spaces(
            inner,
            from_gymnasium(action, "the action space", action=True),
            rewards,
        )

    def close(self) -> None:
        """Do nothing: there is no environment."""

"""Read the values of a parent by name: `networks.policy.layers.0.weight`, `trainer.update`, `memory`."""

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError

from rlrun import checkpointing as storage
from rlrun.commands.fork.parents import Parent
from rlrun.core.errors import RunDirError
from rlrun.runs.files import reason

SHOWN = 3  # names on each side
COMPARED = 1_000  # names on each side, for the nearest renaming

_messages = logging.getLogger("rlrun")


@dataclass(frozen=True)
class WeightSource:
    """A checkpoint or a weights file that was read."""

    place: Path
    # By name: tensors, numbers, nested states, and optimizer moments by the name of their parameter:
    nodes: Mapping[str, Any]
    about: Mapping[str, Any]  # `env_steps`, `updates` and `digest`, if known

    @property
    def origin(self) -> str:
        """The place, and how far its run had come."""
        steps, updates = self.about.get("env_steps"), self.about.get("updates")
        return f"{self.place}" if steps is None else f"{self.place} ({steps:,} env steps, {updates:,} updates)"


def read(parent: Parent, wanted: Callable[[str], bool]) -> WeightSource:
    """Read a parent's values; a damaged newest checkpoint is skipped.

    Args:
        parent: the source.
        wanted: returns True for a part that is needed; memories are large.

    Raises:
        RunDirError: it is missing or damaged.
    """
    if parent.run is None or parent.path != parent.run.path:
        return _file(parent.path) if parent.path.is_file() else _checkpoint(parent.path, wanted)
    checkpoints, damaged = parent.run.newest_first(), []
    if not checkpoints:
        raise RunDirError(f"{parent.path} has no checkpoint yet to start from")
    for place in checkpoints:
        try:
            source = _checkpoint(place, wanted)
        except RunDirError as error:
            damaged.append(str(error))
            continue
        for message in damaged:
            _messages.warning("%s; starting from checkpoint %s", message, place.name)
        return source
    raise RunDirError(f"none of the {len(checkpoints)} checkpoints can be read; of the newest: {damaged[0]}")


def _checkpoint(place: Path, wanted: Callable[[str], bool]) -> WeightSource:
    note = storage.read_manifest(place)
    states = storage.load(place, [part for part in note.parts if wanted(part)])
    nodes = {name: value for part, state in states.items() for name, value in _named(part, state)}
    about = {"env_steps": note.env_steps, "updates": note.updates}
    return WeightSource(place, nodes, {**about, "digest": _digest(place / "manifest.json")})


def _file(place: Path) -> WeightSource:
    try:
        nodes = safetensors.torch.load_file(place)
    except OSError as error:
        raise RunDirError(f"{place} cannot be read: {reason(error)}") from error
    except (SafetensorError, ValueError, KeyError) as error:
        raise RunDirError(f"{place} is damaged: {error}") from error
    dotted = {name.replace("/", "."): value for name, value in nodes.items()}  # checkpoints write part/name
    return WeightSource(place, dotted if len(dotted) == len(nodes) else nodes, {"digest": _digest(place)})


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _named(name: str, state: Any) -> Iterator[tuple[str, Any]]:
    """Yield a state and everything nested in it by dotted name; tables and optimizers are not divided."""
    yield name, state
    is_table = isinstance(state, Mapping) and {"columns", "index", "sampler", "ejector"} <= state.keys()
    if not isinstance(state, Mapping) or is_optimizer(state) or is_table:
        return
    for key, value in state.items():
        yield from _named(f"{name}.{key}", value)
    if is_optimizer(state.get("optimizer")) and isinstance(state.get("names"), list):
        moments = state["optimizer"]["state"]
        for number, parameter in enumerate(state["names"]):
            if number in moments:
                yield f"{name}.optimizer.{parameter}", moments[number]


def is_optimizer(state: Any) -> bool:
    """Return True if a state is that of a torch optimizer."""
    return isinstance(state, Mapping) and state.keys() == {"state", "param_groups"}


def names_differ(tensors: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Return the parent's names, the wanted names, and the `init.rename` that matches most of them.

    Args:
        tensors: of the parent, by name.
        wanted: tensors of networks here, by full name.
    """
    renaming = _nearest_renaming(tensors, wanted)
    way_out = "" if renaming is None else f"; try 'init.rename={{{renaming[0]}: {renaming[1]}}}'"
    there, here = some([*tensors] or ["no tensor"], SHOWN), some([*wanted] or ["no tensor"], SHOWN)
    return f"it holds {there}, wanted are {here}{way_out}"


def _nearest_renaming(tensors: Mapping[str, Any], wanted: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the prefixes of the parent and of this run that match most tensors; None if no names have equal ends."""
    fitting, alike = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    parents = [(name.split("."), tensors[name]) for name in list(tensors)[:COMPARED]]
    for name in list(wanted)[:COMPARED]:
        own = name.split(".")
        for path, value in parents:
            common = len([*takewhile(lambda ends: ends[0] == ends[1], zip(path[::-1], own[::-1], strict=False))])
            if 0 < common < len(own):
                prefixes = ".".join(path[: len(path) - common]), ".".join(own[: len(own) - common])
                alike[prefixes] += 1
                fitting[prefixes] += value.shape == wanted[name].shape
    if not alike:
        return None
    old, new = max(alike, key=lambda prefixes: (fitting[prefixes], alike[prefixes]))
    return (old, new) if old else ("*", f"{new}.*")


def some(names: Sequence[object], most: int | None, joint: str = " and") -> str:
    """Return names, at most so many, and the number of further ones."""
    more = len(names) - len(names[:most])
    return ", ".join(map(str, names[:most])) + (f"{joint} {more} more" if more else "")

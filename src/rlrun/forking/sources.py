"""What a parent holds, each thing by one name: `networks.policy.layers.0.weight`, `trainer.update`, `memory`."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError

from rlrun import storage
from rlrun.errors import RunDirError
from rlrun.files import reason
from rlrun.forking.parents import Parent
from rlrun.rundir import RunDir

_messages = logging.getLogger("rlrun")


@dataclass(frozen=True)
class Source:
    """A checkpoint or a weights file that was read.

    Attributes:
        place: where it lies.
        run: the run that it is from, if any.
        nodes: whatever has a name: tensors, numbers, the nests that they lie in, and moments of optimisers by
            the name of their parameter.
        about: `env_steps`, `updates` and `digest`, as far as they are known.
    """

    place: Path
    run: RunDir | None
    nodes: Mapping[str, Any]
    about: Mapping[str, Any] = field(default_factory=dict)

    def describe(self) -> str:
        """Return the place in a few words."""
        steps, updates = self.about.get("env_steps"), self.about.get("updates")
        return f"{self.place}" if steps is None else f"{self.place} ({steps:,} env steps, {updates:,} updates)"


def read(parent: Parent, wanted: Callable[[str], bool]) -> Source:
    """Read what a parent holds; a damaged checkpoint is passed over where the newest was asked for.

    Args:
        parent: where.
        wanted: tells whether a part of it is worth reading; memories are large.

    Raises:
        RunDirError: it is missing or damaged.
    """
    if parent.place is not None:
        return _file(parent.place) if parent.place.is_file() else _checkpoint(parent.place, parent.run, wanted)
    assert parent.run is not None
    checkpoints, damaged = parent.run.newest_first(), []
    if not checkpoints:
        raise RunDirError(f"{parent.run.path} has no checkpoint yet to start from")
    for place in checkpoints:
        try:
            source = _checkpoint(place, parent.run, wanted)
        except RunDirError as error:
            damaged.append(str(error))
            continue
        for message in damaged:
            _messages.warning("%s; starting from checkpoint %s", message, place.name)
        return source
    raise RunDirError(f"none of the {len(checkpoints)} checkpoints can be read; of the newest: {damaged[0]}")


def _checkpoint(place: Path, run: RunDir | None, wanted: Callable[[str], bool]) -> Source:
    note = storage.read_manifest(place)
    states = storage.load(place, [part for part in note["parts"] if wanted(part)])
    nodes = {name: value for part, state in states.items() for name, value in named(part, state)}
    about = {name: note.get(name) for name in ("env_steps", "updates")}
    return Source(place, run, nodes, {**about, "digest": _digest(place / "manifest.json")})


def _file(place: Path) -> Source:
    try:
        nodes = safetensors.torch.load_file(place)
    except OSError as error:
        raise RunDirError(f"{place} cannot be read: {reason(error)}") from error
    except (SafetensorError, ValueError, KeyError) as error:
        raise RunDirError(f"{place} is damaged: {error}") from error
    dotted = {name.replace("/", "."): value for name, value in nodes.items()}  # checkpoints write part/name
    return Source(place, None, dotted if len(dotted) == len(nodes) else nodes, {"digest": _digest(place)})


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def named(name: str, state: Any) -> Iterator[tuple[str, Any]]:
    """Yield a state and everything nested in it by dotted name."""
    yield name, state
    if not isinstance(state, Mapping) or is_optimiser(state) or is_table(state):
        return
    for key, value in state.items():
        yield from named(f"{name}.{key}", value)
    if is_optimiser(state.get("optimiser")) and isinstance(state.get("names"), list):
        moments = state["optimiser"]["state"]
        for number, parameter in enumerate(state["names"]):
            if number in moments:
                yield f"{name}.optimiser.{parameter}", moments[number]


def is_optimiser(state: Any) -> bool:
    """Tell whether a state is that of a torch optimiser."""
    return isinstance(state, Mapping) and state.keys() == {"state", "param_groups"}


def is_table(state: Any) -> bool:
    """Tell whether a state is that of a replay memory."""
    return isinstance(state, Mapping) and {"columns", "index", "sampler", "ejector"} <= state.keys()


def is_generator(state: Any) -> bool:
    """Tell whether a state is that of a numpy generator."""
    return isinstance(state, Mapping) and "bit_generator" in state

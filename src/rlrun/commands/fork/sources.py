"""Choose the run that each entry of a part comes from, and read the checkpoints."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlrun import checkpointing as storage
from rlrun.checkpointing.manifest import CheckpointManifest
from rlrun.commands.fork.parents import find
from rlrun.core.errors import ConfigError, RunDirError, beginnings, did_you_mean
from rlrun.runs.directory import RunDir

ALL = "from"  # the key of `init` for all parts; other keys are prefixes of parts, and the longest match counts
SHOWN = 3  # largest number of names in a message

_messages = logging.getLogger("rlrun.commands.fork")


class Taken(NamedTuple):
    """The requested source of an entry of a part."""

    key: str  # of `init`
    run: str  # as the config has it
    prefix: str  # the name of `key` in that run; empty for all parts
    part: str  # the part's name in that run; empty if only some of its entries are taken
    name: str  # the entry's full name in that run


class Source(NamedTuple):
    """A loaded checkpoint."""

    run: RunDir
    place: Path
    about: CheckpointManifest
    states: Mapping[str, Any]  # of the requested parts

    def lookup(self, name: str) -> Any:
        """Return the state of a part, or an entry inside it, by full name; None if the run lacks it."""
        found: Any = self.states
        while name:
            if not isinstance(found, Mapping):
                return None
            # a key may contain dots, or be a number
            keys = [name] if name in found else [key for key in found if within(name, str(key))]
            if not keys:  # the name may be the prefix of several entries, such as a submodule's
                below = {key[len(name) + 1 :]: found[key] for key in map(str, found) if within(key, name)}
                return below if below and found is not self.states else None
            key = max(keys, key=lambda key: len(str(key)))
            found, name = found[key], name[len(str(key)) + 1 :]
        return found


def choose(
    init: Mapping[str, tuple[str, str] | None], own: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Taken]]:
    """Return the source of each entry of each part; the longest prefix in `init` counts.

    Raises:
        ConfigError: a prefix matches no part of this run.
    """
    taken: dict[str, dict[str, Taken]] = {}
    met = {ALL}
    for path, entries in own.items():
        for name in entries:
            full = full_name(path, name)
            keys = [key for key in init if key != ALL and within(full, key)]
            met.update(keys)
            key = max(keys, key=len, default=ALL)
            if (source := init.get(key)) is None:
                continue
            run, other = source
            prefix = other or ("" if key == ALL else key)
            below = 0 if key == ALL else len(key)
            part = prefix + path[below:] if key == ALL or within(path, key) else ""
            taken.setdefault(path, {})[name] = Taken(key, run, prefix, part, prefix + full[below:])
    for key in init:
        if key not in met:
            near = did_you_mean(key, beginnings(own)) or f"; there are {some([*own])}"
            raise ConfigError(f"init.{key}: this run has no part '{key}' that takes something of another run{near}")
    return taken


def read(taken: Mapping[str, Mapping[str, Taken]]) -> dict[str, Source]:
    """Read the runs that parts come from.

    Damaged newest checkpoints are skipped with a warning; a checkpoint that the user named is not.

    Raises:
        RequestError: a run, a checkpoint or a part is missing, or is damaged.
    """
    by_key: dict[str, list[Taken]] = {}
    for entries in taken.values():
        for entry in entries.values():
            by_key.setdefault(entry.key, []).append(entry)
    sources: dict[str, Source] = {}
    for key, (entry, *_) in by_key.items():
        if entry.run in sources:
            continue
        names = {need.name for group in by_key.values() for need in group if need.run == entry.run}
        try:
            run, which = find(entry.run)
            places = [run.checkpoint(which)] if which else run.newest_first()
            for number, place in enumerate(places):
                try:
                    about = storage.read_manifest(place)
                    wanted = [part for part in about.parts if any(within(name, part) for name in names)]
                    sources[entry.run] = Source(run, place, about, storage.load(place, wanted))
                    break
                except RunDirError as error:
                    if number + 1 == len(places):
                        raise
                    _messages.warning("%s; starting from the checkpoint before it", error)
            else:
                raise RunDirError(f"{run.path} has no checkpoint yet")
        except RunDirError as error:
            raise RunDirError(f"init.{key}: {error}") from error
    for key, group in by_key.items():
        source, prefix = sources[group[0].run], group[0].prefix
        if any(source.lookup(entry.name) is not None for entry in group):
            continue
        there, state = source.about.parts, source.lookup(prefix)
        if prefix and isinstance(state, Mapping):
            lacking = some([entry.name.removeprefix(f"{prefix}.") for entry in group])
            raise ConfigError(f"init.{key}: {prefix} of {source.place} has no {lacking}; it has {some([*state])}")
        lacking = some([*dict.fromkeys(entry.part or prefix for entry in group)])
        below = [part for part in there if within(part, prefix)]
        near = (not below and did_you_mean(prefix, there)) or f"; it has {some(below or there)}"
        raise ConfigError(f"init.{key}: {source.place} has no {lacking}{near}; RUN:NAME takes a part of another name")
    return sources


def within(name: str, prefix: str) -> bool:
    """Return True if a dotted name equals a prefix, or lies below it."""
    return f"{name}.".startswith(f"{prefix}.")


def full_name(path: str, name: str) -> str:
    """Return the name of a part's entry in the config; the empty name is the part itself."""
    return f"{path}.{name}" if name else path


def some(names: Sequence[str]) -> str:
    """Return the first names, and the number of others, as text."""
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")

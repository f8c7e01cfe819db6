"""Load parts of other runs into a new one: `init: {PART: RUN}`. All is checked before a run directory exists."""

import copy
import hashlib
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from rlrun import checkpointing as storage
from rlrun.callbacks import Checkpointer, MemoryImport, TargetCallback
from rlrun.commands.fork.parents import find, wanted
from rlrun.config import Composed
from rlrun.config.build import explain
from rlrun.core.errors import ConfigError, RlrunError, RunDirError, did_you_mean
from rlrun.core.typing import Stateful
from rlrun.memory import Table
from rlrun.memory.episodes import cut_off
from rlrun.runs.checkpoint_manifest import CheckpointManifest
from rlrun.runs.directory import RunDir, checkpoint_name
from rlrun.runs.files import write_text

ALL = "from"  # the key of `init` for all parts; other keys are prefixes of parts, and the longest one decides
SHOWN = 3  # names in a message

_messages = logging.getLogger("rlrun.commands.fork")


class Taken(NamedTuple):
    """Where an entry of a part comes from."""

    key: str  # of `init`
    run: str  # as the config has it
    prefix: str  # the name of `key` in that run; empty for all parts
    part: str  # the part's name in that run; empty if only some of its entries are taken
    name: str  # the entry's full name in that run


class Source(NamedTuple):
    """A checkpoint that was read."""

    run: RunDir
    place: Path
    about: CheckpointManifest
    states: Mapping[str, Any]  # of the parts that are wanted

    def lookup(self, name: str) -> Any:
        """Return the state of a part, or an entry of it, by full name; None where the run lacks it."""
        if name in self.states:
            return self.states[name]
        part = max((part for part in self.states if _within(name, part)), key=len, default="")
        state = self.states.get(part)
        return state.get(name.removeprefix(f"{part}.")) if isinstance(state, Mapping) else None


@dataclass
class Fork:
    """What a new run took of others."""

    lineage: Any  # for the manifest: one parent, or a list of several
    lines: list[str]  # what was loaded from where, and what was left at its initial values

    def begin(self, run: RunDir, parts: Mapping[str, Stateful]) -> dict[str, Any]:
        """Write the new run's first checkpoint. From here on the run does not need its parents.

        Returns:
            The states that were written.

        Raises:
            RlrunError: it cannot be written.
        """
        directory = run.checkpoints / checkpoint_name(0, 0)
        rows = all(part.memory for part in parts.values() if isinstance(part, Checkpointer))
        home = storage.home_of(run.checkpoints)
        tables = [path for path, part in parts.items() if isinstance(part, Table)]
        states = {
            path: part.checkpoint(home) if isinstance(part, Table) else part.state_dict()
            for path, part in parts.items()
            if rows or path not in tables
        }
        created = datetime.now(UTC).isoformat(timespec="seconds")
        about = {"env_steps": 0, "updates": 0, "evaluation": None, "created": created}
        storage.write(directory, storage.snapshot(states, about=about, apart=tables, copy=False))
        write_text(run.checkpoints / "latest", directory.name + "\n")
        run.note("\n".join(self.lines))
        return states


def transfer(composed: Composed, parts: Mapping[str, Stateful]) -> Fork | None:
    """Load the parts that `init` names into a run that was built; return None where it names none.

    Args:
        composed: of the new run.
        parts: of the new run, by config path.

    Raises:
        RequestError: a run, a checkpoint or a part does not exist, or does not fit.
    """
    init, strict = wanted(composed), composed.config.init.strict
    if not any(init.values()):
        return None
    own = {path: entries for path, part in parts.items() if (entries := _entries(part))}
    taken = _choose(init, own)
    sources = _read(taken)
    values: dict[str, dict[str, Any]] = {}  # part -> entry -> value that fits
    loaded: dict[str, list[str]] = {run: [] for run in sources}
    left: dict[str, str] = {}  # what stays at its initial values -> why
    for path, entries in sorted(taken.items(), key=lambda item: not isinstance(parts[item[0]], nn.Module)):
        part, first = parts[path], next(iter(entries.values()))
        there = {name: sources[entry.run].lookup(entry.name) for name, entry in entries.items()}
        if all(value is None for value in there.values()):
            left[path] = "not there"
            continue
        if network := _untaken(part, parts, values):
            left[path] = f"{network} has initial values"
            continue
        whys = {name: _misfit(part, name, own[path][name], value) for name, value in there.items()}
        misfits = {_full(path, name): why for name, why in whys.items() if why}
        if strict and isinstance(part, nn.Module):
            state = sources[first.run].states.get(first.part, {})
            misfits |= {_full(path, name): "not here" for name in state if name not in own[path]}
        if strict and misfits:
            names = _some([f"{name} ({why})" for name, why in misfits.items()])
            way_out = "init.strict=false leaves these at their initial values"
            raise ConfigError(f"init.{first.key}: {sources[first.run].place} does not fit: {names}; {way_out}")
        left |= misfits
        if misfits and not isinstance(part, nn.Module):  # another state is loaded as a whole
            continue
        values[path] = {name: value for name, value in there.items() if not whys[name]}
        for run in dict.fromkeys(entries[name].run for name in values[path]):
            count = sum(entries[name].run == run for name in values[path])
            remarks = [f"{first.part} there"] if first.part not in ("", path) else []
            remarks += [f"{count} of {len(own[path])}"] if count < len(own[path]) else []
            loaded[run].append(path + (f" ({', '.join(remarks)})" if remarks else ""))
    tables = [path for path in values if isinstance(parts[path], Table)]
    networks = [path for path in values if isinstance(parts[path], nn.Module)]
    for path in networks:
        _load(path, parts[path], values[path], own[path])
    for part in parts.values():
        if isinstance(part, TargetCallback):
            part.catch_up()
        if isinstance(part, MemoryImport) and part.sources and any(parts[path] is part.table for path in tables):
            part.load_state_dict(part.state_dict() | {"taken_in": True})
            left["memory.import"] = "the memory is that of another run"
    for path in values:
        if path not in networks:
            _load(path, parts[path], values[path], own[path])
    lines, lineage = [], []
    for run, (directory, place, about, _) in sources.items():
        came = {"env_steps": about.env_steps, "updates": about.updates}
        steps = f"{about.env_steps or 0:,} env steps, {about.updates or 0:,} updates"
        lines.append(f"starts from {place} ({steps}): {', '.join(loaded[run]) or 'nothing'}")
        with open(place / storage.MANIFEST, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        keys = {entry.key: entry.prefix for entries in taken.values() for entry in entries.values() if entry.run == run}
        lineage.append({"run": str(directory.path), "checkpoint": str(place), **came, "digest": digest, "init": keys})
    if left:
        lines.append(f"initial values: {', '.join(f'{name} ({why})' for name, why in left.items())}")
    for line in lines:
        _messages.info("%s", line)
    return Fork(lineage if len(lineage) > 1 else lineage[0], lines)


def _untaken(part: Stateful, parts: Mapping[str, Stateful], values: Mapping[str, Any]) -> str | None:
    """Return a network that a callback trains or follows, if it is not taken: then nothing of the callback is."""
    optimizer = getattr(part, "optimizer", None)
    trained = optimizer.param_groups if isinstance(optimizer, torch.optim.Optimizer) else []
    trained_ids = {id(parameter) for group in trained for parameter in group["params"]}
    for path, network in parts.items():
        if isinstance(network, nn.Module) and network is not part and path not in values:
            follows = not trained and any(network is attribute for attribute in getattr(part, "__dict__", {}).values())
            if follows or any(id(parameter) in trained_ids for parameter in network.parameters()):
                return path
    return None


def _entries(part: Stateful) -> dict[str, Any]:
    """Return what a part can take of another run: name within it -> present value; "" names the part as a whole."""
    if isinstance(part, Table):
        return {"": part}
    if isinstance(part, nn.Module):
        return dict(part.state_dict()) or {"": {}}
    inherited = getattr(part, "inherited", ())
    state = part.state_dict() if inherited else {}
    return {name: state[name] for name in inherited if name in state}


def _choose(
    init: Mapping[str, tuple[str, str] | None], own: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Taken]]:
    """Return where each entry of each part comes from; the longest prefix decides.

    Raises:
        ConfigError: a prefix names nothing of this run.
    """
    taken: dict[str, dict[str, Taken]] = {}
    met = {ALL}
    for path, entries in own.items():
        for name in entries:
            full = _full(path, name)
            keys = [key for key in init if key != ALL and _within(full, key)]
            met.update(keys)
            key = max(keys, key=len, default=ALL)
            if (source := init.get(key)) is None:
                continue
            run, other = source
            prefix = other or ("" if key == ALL else key)
            below = 0 if key == ALL else len(key)
            part = prefix + path[below:] if key == ALL or _within(path, key) else ""
            taken.setdefault(path, {})[name] = Taken(key, run, prefix, part, prefix + full[below:])
    for key in init:
        if key not in met:
            near = did_you_mean(key, own) or f"; there are {_some([*own])}"
            raise ConfigError(f"init.{key}: this run has no part '{key}' that takes something of another run{near}")
    return taken


def _read(taken: Mapping[str, Mapping[str, Taken]]) -> dict[str, Source]:
    """Read the runs that parts come from; a damaged newest checkpoint is skipped, one that was named is not.

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
                    wanted = [part for part in about.parts if any(_within(name, part) for name in names)]
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
        if isinstance(state, Mapping):
            lacking = _some([entry.name.removeprefix(f"{prefix}.") for entry in group])
            raise ConfigError(f"init.{key}: {prefix} of {source.place} has no {lacking}; it has {_some([*state])}")
        lacking = _some([*dict.fromkeys(entry.part or prefix for entry in group)])
        within = [part for part in there if _within(part, prefix)]
        near = (not within and did_you_mean(prefix, there)) or f"; it has {_some(within or there)}"
        raise ConfigError(f"init.{key}: {source.place} has no {lacking}{near}; RUN:NAME takes a part of another name")
    return sources


def _misfit(part: Stateful, name: str, own: Any, value: Any) -> str | None:
    """Return why a part cannot take a value in place of its own; None if it can, or if only loading shows that."""
    if value is None:
        return "not there"
    if isinstance(part, Table):
        if not isinstance(value, Mapping) or not {"columns", "index"} <= value.keys():
            return "it is no memory there"
        try:
            part.require_alike(value)
        except RlrunError as error:
            return str(error).removeprefix("memory: ")
        for kind in ("sampler", "ejector"):
            if getattr(part, kind).state_dict().keys() - value[kind].keys() - {"burst"}:  # a burst may be over
                return f"it has another {kind} there"
        return None
    if not name:  # a network without numbers
        return "it has numbers there" if value else None
    if _is_optimizer(own) and _is_optimizer(value):
        optimizer: torch.optim.Optimizer = cast(Any, part).optimizer
        for number, there in value["state"].items():
            here = _moments(optimizer, number)
            if here.keys() != there.keys():
                return f"it remembers {', '.join(there)} there, {', '.join(here) or 'nothing'} here"
            if why := _difference(here, there):
                return why
        return None
    return _difference(own, value)


def _difference(own: Any, value: Any) -> str | None:
    """Return where two states differ in names or shapes; None if they do not."""
    if isinstance(own, Mapping) and isinstance(value, Mapping) and own:
        for name in {**own, **value}:
            if name not in value or name not in own:
                return f"{name} is not {'there' if name not in value else 'here'}"
            if why := _difference(own[name], value[name]):
                return f"{name}: {why}" if isinstance(own[name], Mapping) else why
        return None
    if isinstance(own, list) and own and isinstance(own[0], str):  # names of parameters
        return None if own == value else "it has other parameters there"
    there, here = (
        f"{list(state.shape)}" if isinstance(state, Tensor | np.ndarray) else type(state).__name__
        for state in (value, own)
    )
    numbers = {"int", "float", "NoneType"}  # a state may have none yet
    return None if there == here or {there, here} <= numbers else f"{there} there, {here} here"


def _is_optimizer(state: Any) -> bool:
    return isinstance(state, Mapping) and state.keys() == {"state", "param_groups"}


def _moments(optimizer: torch.optim.Optimizer, number: int) -> dict[str, Any]:
    """Return an optimizer's state for its parameter of a number after a first step, found by a step on a copy."""
    pairs = [(group, parameter) for group in optimizer.param_groups for parameter in group["params"]]
    if number >= len(pairs):
        return {}
    group, parameter = pairs[number]
    trial_parameter = nn.Parameter(torch.zeros_like(parameter))
    trial_parameter.grad = torch.zeros_like(parameter)
    trial = copy.copy(optimizer)
    trial.param_groups = [{**group, "params": [trial_parameter]}]
    trial.state = defaultdict(dict)
    trial.step()
    return dict(trial.state[trial_parameter])


def _load(path: str, part: Stateful, values: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Load values into a part; learning rates and other settings of an optimizer stay its own.

    Raises:
        RunDirError: the part refuses them.
    """
    new = dict(values)
    for name in new:
        if _is_optimizer(own[name]):
            new[name] = {**new[name], "param_groups": own[name]["param_groups"]}
    try:
        part.load_state_dict(new[""] if "" in new else {**part.state_dict(), **new})
        if isinstance(part, Table):
            cut_off(part)  # open episodes belong to the other run
    except Exception as error:
        raise RunDirError(f"init: {path} does not fit: {explain(error)}; init.{path}=null leaves it out") from error


def _within(name: str, prefix: str) -> bool:
    return f"{name}.".startswith(f"{prefix}.")


def _full(path: str, name: str) -> str:
    return f"{path}.{name}" if name else path


def _some(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")

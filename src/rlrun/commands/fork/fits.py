"""Find the states of other runs that fit a new run: tensors of equal shapes, optimizer moments of the same networks."""

import copy
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from rlrun.callbacks import TargetCallback
from rlrun.commands.fork.sources import Source, Taken, full_name, some
from rlrun.core.errors import ConfigError, RlrunError
from rlrun.core.typing import Stateful
from rlrun.memory import Table


class Fits:
    """The values of other runs that fit the parts of a new one, and the reasons why others do not.

    Args:
        parts: of the new run, by config path.
        own: their entries.
        taken: the requested source of each entry.
        sources: the checkpoints that were read.

    Attributes:
        values: part -> entry -> value.
        left: part or entry that keeps its initial values -> reason.
        following: target network that is copied from its network instead -> reason.
    """

    def __init__(
        self,
        parts: Mapping[str, Stateful],
        own: Mapping[str, Mapping[str, Any]],
        taken: Mapping[str, Mapping[str, Taken]],
        sources: Mapping[str, Source],
    ) -> None:
        self.parts, self.own, self.taken, self.sources = parts, own, taken, sources
        self.values: dict[str, dict[str, Any]] = {}
        self.left: dict[str, str] = {}
        self.following: dict[str, str] = {}
        # id of a network's tensor -> the checkpoints that it comes from, and whether its name is the same there
        self._origins: dict[int, set[tuple[Path, bool]]] = {}

    def take(self, path: str, strict: bool) -> None:
        """Take the values that fit a part.

        Call it for networks first: the states of callbacks only fit networks from the same checkpoint.

        Raises:
            ConfigError: a value does not fit, and `strict` is set.
        """
        part, entries = self.parts[path], self.taken[path]
        first = next(iter(entries.values()))
        there = {name: self.sources[entry.run].lookup(entry.name) for name, entry in entries.items()}
        left = self.following if isinstance(part, TargetCallback) else self.left
        reason = "not there" if all(value is None for value in there.values()) else self._of_other_networks(path)
        if reason:
            left[path] = reason
            return
        whys = {name: _misfit(part, name, self.own[path][name], value) for name, value in there.items()}
        if isinstance(part, nn.Module):
            self._keep_together(path, whys)
        misfits = {full_name(path, name): why for name, why in whys.items() if why}
        if strict and isinstance(part, nn.Module):
            misfits |= {full_name(path, name): "not here" for name in self._surplus(path)}
        if strict and misfits:
            names = some([f"{name} ({why})" for name, why in misfits.items()])
            way_out = "init.strict=false leaves these at their initial values"
            raise ConfigError(f"init.{first.key}: {self.sources[first.run].place} does not fit: {names}; {way_out}")
        left |= misfits
        if misfits and not isinstance(part, nn.Module):  # other states are only loaded as a whole
            return
        self.values[path] = {name: value for name, value in there.items() if not whys[name]}
        for name, tensor in _tensors(part).items() if isinstance(part, nn.Module) else ():
            if name in self.values[path]:
                self._origins.setdefault(id(tensor), set()).add(self._origin(path, name))

    def _surplus(self, path: str) -> list[str]:
        """Return the entries that only the other run's network has, by their names in the new run."""
        names: list[str] = []
        for key, entry in {entry.key: entry for entry in self.taken[path].values()}.items():
            state = self.sources[entry.run].lookup(entry.part or entry.prefix)
            above = "" if entry.part else f"{key.removeprefix(f'{path}.')}."
            names += [above + name for name in state] if isinstance(state, Mapping) else []
        return [name for name in names if name not in self.own[path]]

    def _origin(self, path: str, name: str) -> tuple[Path, bool]:
        entry = self.taken[path][name]
        return self.sources[entry.run].place, entry.name == full_name(path, name)

    def _of_other_networks(self, path: str) -> str | None:
        """Return a network of a callback that does not come from the same checkpoint as the callback's state.

        It is a network that the callback trains, or that its target network follows; None if all match.
        """
        part = self.parts[path]
        optimizer = getattr(part, "optimizer", None)
        groups = optimizer.param_groups if isinstance(optimizer, torch.optim.Optimizer) else ()
        tensors = [parameter for group in groups for parameter in group["params"]]
        tensors += _tensors(part.network).values() if isinstance(part, TargetCallback) else ()
        ids = {id(tensor) for tensor in tensors}
        origins = {self._origin(path, name) for name in self.taken[path]}
        same = len(origins) == 1 and all(named for _, named in origins)
        for network, state in self.own.items():
            module = self.parts[network]
            for name, tensor in _tensors(module).items() if isinstance(module, nn.Module) else ():
                there = self._origins.get(id(tensor))
                if id(tensor) in ids and name in state and not (same and there == origins):
                    what = full_name(network, name) if network in self.values else network
                    return f"{what} {'comes from elsewhere' if there else 'has initial values'}"
        return None

    def _keep_together(self, path: str, whys: dict[str, str | None]) -> None:
        """Drop entries of a module with buffers unless all come from one module, as they are one statistic."""
        parameters = dict(cast(nn.Module, self.parts[path]).named_parameters(remove_duplicate=False))
        modules: dict[str, list[str]] = defaultdict(list)
        for name in self.own[path]:
            modules[name.rpartition(".")[0]].append(name)
        for names in modules.values():
            taken = [self.taken[path].get(name) for name in names]
            origins = {None if entry is None else (entry.run, entry.name.rpartition(".")[0]) for entry in taken}
            if {*names} - parameters.keys() and (len(origins) > 1 or any(whys.get(name) for name in names)):
                whys |= {name: whys[name] or "taken as a whole only" for name in names if name in whys}

    def described(self, run: str) -> list[str]:
        """Return the parts taken from a run, with their names there and the number of entries, if these differ."""
        loaded = []
        for path, values in self.values.items():
            entries, own = self.taken[path], self.own[path]
            if count := sum(entries[name].run == run for name in values):
                there = next(iter(entries.values())).part
                remarks = [f"{there} there"] if there not in ("", path) else []
                remarks += [f"{count} of {len(own)}"] if count < len(own) else []
                loaded.append(path + (f" ({', '.join(remarks)})" if remarks else ""))
        return loaded


def _tensors(network: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by name; a shared tensor appears under each of its names."""
    parameters, buffers = (named(remove_duplicate=False) for named in (network.named_parameters, network.named_buffers))
    return {**dict(parameters), **dict(buffers)}


def entries_of(part: Stateful) -> dict[str, Any]:
    """Return the entries of a part that another run can provide: name -> present value; "" is the whole part."""
    if isinstance(part, Table):
        return {"": part}
    if isinstance(part, nn.Module):
        return dict(part.state_dict()) or {"": {}}
    inherited = getattr(part, "inherited", ())
    state = part.state_dict() if inherited else {}
    return {name: state[name] for name in inherited if name in state}


def _misfit(part: Stateful, name: str, own: Any, value: Any) -> str | None:
    """Return why a value cannot replace a part's own; None if it can, or if only loading can tell."""
    if value is None:
        return "not there"
    if isinstance(part, Table):
        if not isinstance(value, Mapping) or not {"columns", "index"} <= value.keys():
            return "it is no memory there"
        try:
            part.require_alike(value)
        except RlrunError as error:
            return str(error).removeprefix("memory: ")
        for kind, strategy in (("sampler", part.sampler), ("ejector", part.ejector)):
            if not strategy.takes(value[kind]):
                return f"it has another {kind} there"
        return None
    if not name:  # a network without tensors
        return "it has numbers there" if value else None
    if is_optimizer(own) and is_optimizer(value):
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
    """Return a difference in names or shapes between two states, or None."""
    if isinstance(own, Mapping) and isinstance(value, Mapping) and own:
        for name in {**own, **value}:
            if name not in value or name not in own:
                return f"{name} is not {'there' if name not in value else 'here'}"
            if why := _difference(own[name], value[name]):
                return f"{name}: {why}" if isinstance(own[name], Mapping) else why
        return None
    if isinstance(own, list) and own and isinstance(own[0], str):  # a list of parameter names
        return None if own == value else "it has other parameters there"
    there, here = (
        f"{list(state.shape)}" if isinstance(state, Tensor | np.ndarray) else type(state).__name__
        for state in (value, own)
    )
    numbers = {"int", "float", "NoneType"}  # None: a number that is not set yet
    return None if there == here or {there, here} <= numbers else f"{there} there, {here} here"


def is_optimizer(state: Any) -> bool:
    return isinstance(state, Mapping) and state.keys() == {"state", "param_groups"}


def _moments(optimizer: torch.optim.Optimizer, number: int) -> dict[str, Any]:
    """Return the optimizer state of one parameter after a first step, which is made on a copy.

    number: index of the parameter among all groups.
    """
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

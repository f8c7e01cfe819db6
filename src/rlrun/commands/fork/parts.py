"""Load each part of a run from another run, name by name."""

import copy
import inspect
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import reduce
from operator import getitem
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from rlrun.callbacks import (
    Budget,
    Checkpointer,
    Evaluator,
    Logger,
    LossCallback,
    MemoryExport,
    MemoryImport,
    TargetCallback,
)
from rlrun.collect import ByIdCollector, Collector
from rlrun.commands.fork.sources import is_optimizer
from rlrun.core.errors import RunDirError
from rlrun.core.generators import Generators
from rlrun.core.typing import Stateful
from rlrun.env import Env
from rlrun.memory import Fifo, JointLoader, Mix, Prefetch, ReplayLoader, Rollout, RolloutLoader, Table, Uniform
from rlrun.memory.episodes import Stored, add_all, cut_off
from rlrun.memory.pool import PoolIndex
from rlrun.memory.recorder import Recorder
from rlrun.nn.optimizers import load_optimizer, optimizer_state
from rlrun.training.callback import Callback
from rlrun.training.trainer import Trainer

COUNTED = ("steps", "episodes", "returns", "lengths")
# Only these entries are loaded: files, clocks, the best return, positions in data and open episodes belong to one run.
INHERITED: dict[type[Any], tuple[str, ...]] = {
    Trainer: ("update", "group_updates"),
    Collector: COUNTED,
    ByIdCollector: COUNTED,
    Evaluator: ("next",),
    Logger: ("last.env_steps", "last.updates", "newest"),
    **dict.fromkeys((Budget, Checkpointer, MemoryImport, MemoryExport), ()),
    **dict.fromkeys((Prefetch, JointLoader, Mix, Rollout, RolloutLoader), ()),
    Env: ("wrappers",),
    Generators: (),
}
MOMENTS = "optimizer."


class ForkedPart(ABC):
    """A part of a new run that loads named entries.

    kinds: entries that it can load: name within the part -> kind.
    """

    kinds: Mapping[str, str]

    def __init__(self, part: Any) -> None:
        self.part = part

    def owner(self, name: str) -> Tensor | None:
        """Return the tensor that an entry belongs to; unless it is loaded, the entry is not."""
        return None

    def misfit(self, name: str, value: Any) -> str | None:
        """Return why a value cannot be loaded; None if it can, or if only loading shows that."""
        return None

    @abstractmethod
    def load(self, values: Mapping[str, Any]) -> None:
        """Load these values; everything else keeps its initial value."""


def part_of(part: Stateful) -> ForkedPart:
    """Return a part of a run as one that loads named entries."""
    takers: dict[type[Any], type[ForkedPart]] = {nn.Module: Network, Table: Memory, ReplayLoader: Pace}
    takers |= {LossCallback: Loss, TargetCallback: TargetNetwork, Env: Wrappers}
    return next((taker for kind, taker in takers.items() if isinstance(part, kind)), Counters)(part)


class Pace(ForkedPart):
    """A loader that collects: loads whether the warm-up is over. The ratio of updates to steps continues from here."""

    kinds = {"start": "numbers"}

    def load(self, values: Mapping[str, Any]) -> None:
        if values["start"] is not None:
            collector = self.part.collector
            progress = {"updates": 0, "start": 0 if collector is None else collector.steps}
            self.part.load_state_dict(self.part.state_dict() | progress)


class Memory(ForkedPart):
    """A table as a whole. Open episodes of the parent end at their last row."""

    kinds = {"": "memory"}
    how = ""  # how the rows were changed, if they were

    def load(self, values: Mapping[str, Any]) -> None:
        """Load a state; a table of another length, number of envs or kind gets its episodes, as new ones.

        Raises:
            RlrunError: the columns differ.
        """
        table, state = self.part, values[""]
        pooled = "freed" in state["index"]  # envs shared the rows
        size, envs = int(state["index"]["size"]), len(state["index"]["open"])
        parts: dict[str, Stateful] = {"sampler": table.sampler, "ejector": table.ejector}
        kind = all(state[name].keys() == part.state_dict().keys() for name, part in parts.items())
        unchanged = pooled == isinstance(table.index, PoolIndex) and (size, envs) == (
            table.index.size,
            table.index.num_envs,
        )
        if kind and unchanged:
            table.load_state_dict(state)
            cut_off(table)
            return
        if table.frames is not None:
            raise RunDirError("its length, its envs or its kind differ, and frames are stacked")
        before = Recorder(  # of the old shape, with the new columns
            [*table.storage.columns.values(), *table.tags.columns.values()],
            length=size - envs,
            num_envs=envs,
            sampler=Uniform(),
            ejector=Fifo(whole=pooled),
            frame_stack=1,
            min_length=1,
            directory=None,
        )
        before.load_state_dict({**state, **{name: getattr(before, name).state_dict() for name in parts}})
        cut_off(cast(Table, before))  # reading needs no more of the old table
        episodes = Stored.of(cast(Table, before))
        add_all(table, episodes, append=False)
        self.how = f"{len(table):,} of {int(episodes.rows.sum()):,} transitions, as new episodes"


class Counters(ForkedPart):
    """Any other part: the entries of its state, without generators.

    Floating-point tensors count as weights, states of optimizers as optimizers, everything else as numbers.
    """

    apart: tuple[str, ...] = ("metrics",)  # entries that a subclass handles, or that do not influence training

    def __init__(self, part: Any) -> None:
        super().__init__(part)
        allowed = getattr(part, "inherited", None)
        for kind, entries in INHERITED.items():
            allowed = entries if isinstance(part, kind) else allowed
        self.state: dict[str, Any] = part.state_dict() if allowed != () else {}
        paths = _leaves({key: value for key, value in self.state.items() if key not in self.apart})
        names = {".".join(path): path for path in paths}
        self.paths = {
            name: path
            for name, path in names.items()
            if allowed is None or any(f"{name}.".startswith(f"{entry}.") for entry in allowed)
        }
        self.kinds = {name: _kind(reduce(getitem, path, self.state)) for name, path in self.paths.items()}

    def misfit(self, name: str, value: Any) -> str | None:
        current = reduce(getitem, self.paths[name], self.state)
        if is_optimizer(current):
            return None if is_optimizer(value) and _sizes(value) == _sizes(current) else "optimizes other parameters"
        return _difference(current, value) if isinstance(current, Tensor) else None

    def load(self, values: Mapping[str, Any]) -> None:
        state: dict[str, Any] = _copied(self.state)
        for name, value in values.items():
            *above, last = self.paths[name]
            node = reduce(getitem, above, state)
            node[last] = {**value, "param_groups": node[last]["param_groups"]} if is_optimizer(value) else value
        flags = {}
        if isinstance(self.part, Callback):  # a user's callback may lack some of the keywords
            kinds = {kind for name, kind in self.kinds.items() if name in values}
            flags = {"weights": "weights" in kinds, "optimizer": "optimizers" in kinds, "numbers": "numbers" in kinds}
            parameters = inspect.signature(self.part.load_state_dict).parameters
            if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters.values()):
                flags = {name: wanted for name, wanted in flags.items() if name in parameters}
        self.part.load_state_dict(state, **flags)


class Network(Counters):
    """A module: its parameters and buffers, all of them weights."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__(part)
        self.kinds = dict.fromkeys(self.kinds, "weights")


class Wrappers(Counters):
    """What wrappers of the environment remember. Networks were trained by their statistics, so they go with weights."""

    def __init__(self, part: Env) -> None:
        super().__init__(part)
        self.kinds = dict.fromkeys(self.kinds, "weights")

    def misfit(self, name: str, value: Any) -> str | None:
        current: Any = reduce(getitem, self.paths[name], self.state)
        here, there = np.shape(current), np.shape(value)
        return None if here == there else f"{list(there)} there, {list(here)} here"

    def load(self, values: Mapping[str, Any]) -> None:
        if values:
            super().load(values)


class Loss(Counters):
    """A loss: its counters, and its optimizer's state for each parameter.

    Learning rates and other settings of the optimizer are those of the new run's config.
    """

    apart = ("metrics", "optimizer", "names")

    def __init__(self, part: LossCallback) -> None:
        super().__init__(part)
        self.optimizer = part.optimizer
        self.parameters = dict(zip((f"{MOMENTS}{name}" for name in part.names), part.parameters, strict=True))
        self.kinds = {**self.kinds, **dict.fromkeys(self.parameters, "optimizers")}

    def owner(self, name: str) -> Tensor | None:
        return self.parameters.get(name)

    def misfit(self, name: str, value: Any) -> str | None:
        if name not in self.parameters:
            return super().misfit(name, value)
        assert self.optimizer is not None
        wanted, stored = _shapes(optimizer_entries(self.optimizer, self.parameters[name])), _shapes(value)
        return None if wanted == stored else f"{_list(stored)} there, {_list(wanted)} here"

    def load(self, values: Mapping[str, Any]) -> None:
        if self.optimizer is not None:
            moments = optimizer_state(self.optimizer)
            moments["state"] |= {place: values[name] for place, name in enumerate(self.parameters) if name in values}
            load_optimizer(self.optimizer, moments)
            self.state = self.part.state_dict()
        super().load({name: value for name, value in values.items() if name in self.paths})


class TargetNetwork(Counters):
    """A target network. Without a source it equals the loaded network."""

    def __init__(self, part: TargetCallback) -> None:
        super().__init__(part)
        self.network = part.network.state_dict(keep_vars=True)

    def owner(self, name: str) -> Tensor | None:
        value = self.network.get(name.removeprefix("target."))
        return value if isinstance(value, Tensor) else None

    def load(self, values: Mapping[str, Any]) -> None:
        self.part.catch_up()
        self.state = self.part.state_dict()
        super().load(values)


def optimizer_entries(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, Any]:
    """Return an optimizer's state for a parameter after its first step, found by a step on a copy."""
    group = next(group for group in optimizer.param_groups if any(member is parameter for member in group["params"]))
    trial_parameter = nn.Parameter(torch.zeros_like(parameter))
    trial_parameter.grad = torch.zeros_like(parameter)
    trial = copy.copy(optimizer)
    trial.param_groups = [{**group, "params": [trial_parameter]}]
    trial.state = defaultdict(dict)
    trial.step()
    return dict(trial.state[trial_parameter])


def _difference(current: Any, value: Any) -> str | None:
    """Return why a value cannot replace another; None if it can."""
    if not isinstance(current, Tensor) or not isinstance(value, Tensor):
        alike = isinstance(current, Tensor) == isinstance(value, Tensor)
        return None if alike else f"{type(value).__name__} there, {type(current).__name__} here"
    if current.shape != value.shape:
        return f"{list(value.shape)} there, {list(current.shape)} here"
    if current.dtype != value.dtype and not (current.is_floating_point() and value.is_floating_point()):
        return f"{value.dtype} there, {current.dtype} here"
    return None


def _leaves(state: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of every entry of a state that can be loaded alone; generators cannot."""
    for key, value in state.items():
        if isinstance(value, Mapping) and value and not is_optimizer(value):
            yield from _leaves(value, (*above, key)) if "bit_generator" not in value else ()
        else:
            yield (*above, key)


def _kind(value: Any) -> str:
    if is_optimizer(value):
        return "optimizers"
    return "weights" if isinstance(value, Tensor) and value.is_floating_point() else "numbers"


def _copied(state: Any) -> Any:
    return {key: _copied(value) for key, value in state.items()} if isinstance(state, dict) else state


def _sizes(state: Mapping[str, Any]) -> list[int]:
    return [len(group["params"]) for group in state["param_groups"]]


def _shapes(state: Mapping[str, Any]) -> dict[str, list[int] | None]:
    """Return the shape of each tensor that an optimizer keeps; None for a number."""
    return {
        name: list(value.shape) if isinstance(value, Tensor) else None
        for name, value in state.items()
        if value is not None
    }


def _list(shapes: Mapping[str, list[int] | None]) -> str:
    return ", ".join(name if shape is None else f"{name} {shape}" for name, shape in shapes.items()) or "nothing"

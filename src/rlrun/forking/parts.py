"""What each part of a run can take over from another, name by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from operator import getitem
from typing import Any, Protocol

from torch import Tensor, nn

from rlrun.callback import Callback
from rlrun.callbacks import Budget, Checkpointer, Evaluator, Logger, MemoryExport, MemoryImport
from rlrun.collect import ByIdCollector, Collector
from rlrun.env import Env
from rlrun.forking.sources import is_generator, is_optimiser
from rlrun.generators import Generators
from rlrun.memory import JointLoader, Mix, Prefetch, ReplayLoader, Rollout, RolloutLoader
from rlrun.memory.proxy import MemoryProxy
from rlrun.trainer import Trainer

COUNTED = ("steps", "episodes", "returns", "lengths")
# Of these only so much: files, clocks, the best so far, places in data and open episodes are a run's own.
INHERITED: dict[type[Any], tuple[str, ...]] = {
    Trainer: ("update",),
    Collector: COUNTED,
    ByIdCollector: COUNTED,
    Evaluator: ("next",),
    Logger: ("last.env_steps", "last.updates", "newest"),
    **dict.fromkeys((Budget, Checkpointer, MemoryImport, MemoryExport), ()),
    **dict.fromkeys((Prefetch, JointLoader, Mix, MemoryProxy, Rollout, RolloutLoader), ()),
    **dict.fromkeys((Env, Generators), ()),
}


class Part(Protocol):
    """A part as something that takes over named things."""

    def names(self) -> Mapping[str, str]:
        """Return what it could take over: name within the part -> kind."""

    def follows(self, name: str) -> Tensor | None:
        """Return the tensor that a thing belongs to: without that one taken over, it makes no sense."""

    def misfit(self, name: str, value: Any) -> str | None:
        """Tell why a value cannot be taken over; None where it can."""

    def take(self, values: Mapping[str, Any]) -> None:
        """Take over these values; everything else stays as it was built."""


class Network:
    """A module: its parameters and buffers."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.held = module.state_dict()

    def names(self) -> Mapping[str, str]:
        return dict.fromkeys(self.held, "weights")

    def follows(self, name: str) -> None:
        return None

    def misfit(self, name: str, value: Any) -> str | None:
        return difference(self.held[name], value)

    def take(self, values: Mapping[str, Any]) -> None:
        self.module.load_state_dict(values, strict=False)


class Pace:
    """A loader that collects: whether the warm-up is over. Updates are counted against steps from here on."""

    def __init__(self, loader: ReplayLoader) -> None:
        self.loader = loader

    def names(self) -> Mapping[str, str]:
        return {"start": "numbers"}

    def follows(self, name: str) -> None:
        return None

    def misfit(self, name: str, value: Any) -> str | None:
        return None

    def take(self, values: Mapping[str, Any]) -> None:
        if values["start"] is not None:
            collector = self.loader.collector
            begun = {"updates": 0, "start": 0 if collector is None else collector.steps}
            self.loader.load_state_dict(self.loader.state_dict() | begun)


class Counters:
    """Any other part: the entries of its state, generators left out.

    What a callback counts as weights, optimiser or numbers is its own affair; here tensors of
    floating point are weights, states of optimisers are optimisers, and all else is numbers.
    """

    apart: tuple[str, ...] = ()  # entries that a subclass looks after
    shown = "metrics"  # of the newest update: nothing hangs on them

    def __init__(self, part: Any) -> None:
        self.part = part
        allowed = getattr(part, "inherited", None)
        for kind, entries in INHERITED.items():
            allowed = entries if isinstance(part, kind) else allowed
        self.state: dict[str, Any] = part.state_dict() if allowed != () else {}
        self.paths = {
            ".".join(path): path
            for path in _leaves(self.state)
            if path[0] not in (*self.apart, self.shown) and _within(path, allowed)
        }

    def names(self) -> Mapping[str, str]:
        return {name: _kind(reduce(getitem, path, self.state)) for name, path in self.paths.items()}

    def follows(self, name: str) -> Tensor | None:
        return None

    def misfit(self, name: str, value: Any) -> str | None:
        current = reduce(getitem, self.paths[name], self.state)
        if is_optimiser(current):
            return None if is_optimiser(value) and _sizes(value) == _sizes(current) else "optimises other parameters"
        return difference(current, value) if isinstance(current, Tensor) else None

    def take(self, values: Mapping[str, Any]) -> None:
        kinds = {kind for name, kind in self.names().items() if name in values}
        state = self.filled(values)
        if isinstance(self.part, Callback):
            flags = {"weights": "weights" in kinds, "optimiser": "optimisers" in kinds, "numbers": "numbers" in kinds}
            self.part.load_state_dict(state, **_taken(flags, by=self.part.load_state_dict))
        else:
            self.part.load_state_dict(state)

    def filled(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the part's state with these values in it."""
        state: dict[str, Any] = _copied(self.state)
        for name, value in values.items():
            if name in self.paths:
                *above, last = self.paths[name]
                node = reduce(getitem, above, state)
                node[last] = {**value, "param_groups": node[last]["param_groups"]} if is_optimiser(value) else value
        return state


def difference(current: Any, value: Any) -> str | None:
    """Tell why a value cannot take the place of another; None where it can."""
    if not isinstance(current, Tensor) or not isinstance(value, Tensor):
        same = isinstance(current, Tensor) == isinstance(value, Tensor)
        return None if same else f"{type(value).__name__} there, {type(current).__name__} here"
    if current.shape != value.shape:
        return f"{list(value.shape)} there, {list(current.shape)} here"
    if current.dtype != value.dtype and not (current.is_floating_point() and value.is_floating_point()):
        return f"{value.dtype} there, {current.dtype} here"
    return None


def _taken(flags: dict[str, bool], *, by: Callable[..., Any]) -> dict[str, bool]:
    """Return those keywords that a function takes: a callback of a user's own may do without."""
    parameters = inspect.signature(by).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return flags
    return {name: wanted for name, wanted in flags.items() if name in parameters}


def _leaves(state: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of every entry of a state that can be taken over by itself."""
    for key, value in state.items():
        path = (*above, key)
        if is_generator(value):
            continue
        if isinstance(value, Mapping) and value and not is_optimiser(value):
            yield from _leaves(value, path)
        else:
            yield path


def _within(path: tuple[str, ...], allowed: tuple[str, ...] | None) -> bool:
    return allowed is None or any(f"{'.'.join(path)}.".startswith(f"{name}.") for name in allowed)


def _kind(value: Any) -> str:
    if is_optimiser(value):
        return "optimisers"
    return "weights" if isinstance(value, Tensor) and value.is_floating_point() else "numbers"


def _copied(state: Any) -> Any:
    return {key: _copied(value) for key, value in state.items()} if isinstance(state, dict) else state


def _sizes(state: Mapping[str, Any]) -> list[int]:
    return [len(group["params"]) for group in state["param_groups"]]

"""What losses and slow copies take over: what hangs on the parameters of a network."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rlrun.callbacks import LossCallback, TargetCallback
from rlrun.forking.memories import Memory
from rlrun.forking.parts import Counters, Network, Pace, Part
from rlrun.memory import ReplayLoader, Table
from rlrun.typing import Stateful

MOMENTS = "optimiser."


def part_of(part: Stateful) -> Part:
    """Return what a part of a run can take over."""
    if isinstance(part, nn.Module):
        return Network(part)
    if isinstance(part, Table):
        return Memory(part)
    if isinstance(part, ReplayLoader):
        return Pace(part)
    if isinstance(part, LossCallback):
        return Loss(part)
    return SlowCopy(part) if isinstance(part, TargetCallback) else Counters(part)


class Loss(Counters):
    """A loss: its counters, and what its optimiser has gathered for each parameter.

    Learning rates and other settings of the optimiser stay those of the new run's config.
    """

    apart = ("optimiser", "names")

    def __init__(self, part: LossCallback) -> None:
        super().__init__(part)
        self.optimiser = part.optimiser
        self.parameters = dict(zip(part.names, part.parameters, strict=True))

    def names(self) -> Mapping[str, str]:
        return {**super().names(), **{f"{MOMENTS}{name}": "optimisers" for name in self.parameters}}

    def follows(self, name: str) -> Tensor | None:
        return self.parameters.get(name.removeprefix(MOMENTS)) if name.startswith(MOMENTS) else None

    def misfit(self, name: str, value: Any) -> str | None:
        if not name.startswith(MOMENTS):
            return super().misfit(name, value)
        assert self.optimiser is not None
        parameter = self.parameters[name.removeprefix(MOMENTS)]
        wanted, stored = _shapes(kept(self.optimiser, parameter)), _shapes(value)
        return None if wanted == stored else f"{_list(stored)} there, {_list(wanted)} here"

    def take(self, values: Mapping[str, Any]) -> None:
        if self.optimiser is not None:
            moments = self.optimiser.state_dict()
            for number, name in enumerate(self.parameters):
                if f"{MOMENTS}{name}" in values:
                    moments["state"][number] = values[f"{MOMENTS}{name}"]
            self.optimiser.load_state_dict(moments)
        super().take({name: value for name, value in values.items() if name in self.paths})

    def filled(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {**super().filled(values), **{name: self.state[name] for name in self.apart if name in self.state}}


class SlowCopy(Counters):
    """A slow copy of a network; where it has no source it equals the network as that was taken over."""

    def __init__(self, part: TargetCallback) -> None:
        super().__init__(part)
        self.network = part.network.state_dict(keep_vars=True)

    def follows(self, name: str) -> Tensor | None:
        value = self.network.get(name.removeprefix("target."))
        return value if isinstance(value, Tensor) else None

    def take(self, values: Mapping[str, Any]) -> None:
        self.part.catch_up()
        self.state = self.part.state_dict()
        super().take(values)


def kept(optimiser: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, Any]:
    """Return what an optimiser keeps for a parameter after its first step, found by a step on another one like it."""
    group = next(group for group in optimiser.param_groups if any(member is parameter for member in group["params"]))
    twin = nn.Parameter(torch.zeros_like(parameter))
    twin.grad = torch.zeros_like(parameter)
    trial = copy.copy(optimiser)
    trial.param_groups = [{**group, "params": [twin]}]
    trial.state = defaultdict(dict)
    trial.step()
    return dict(trial.state[twin])


def _shapes(state: Mapping[str, Any]) -> dict[str, list[int] | None]:
    shapes = {name: list(value.shape) if isinstance(value, Tensor) else None for name, value in state.items()}
    return {name: shape for name, shape in shapes.items() if state[name] is not None}


def _list(shapes: Mapping[str, list[int] | None]) -> str:
    return ", ".join(name if shape is None else f"{name} {shape}" for name, shape in shapes.items()) or "nothing"

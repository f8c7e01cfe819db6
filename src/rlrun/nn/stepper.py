"""One step of an optimiser, with little around it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

OTHER_RULES = ("amsgrad", "maximize", "differentiable", "decoupled_weight_decay")


class _Ready(NamedTuple):
    """What the kernel takes beside gradients: the very tensors that the optimiser keeps."""

    group: dict[str, Any]
    parameters: list[Tensor]  # those that had a gradient so far
    idle: list[Tensor]  # the others
    means: list[Tensor]
    squares: list[Tensor]
    counts: list[Tensor]
    counter: Tensor  # [P]; `counts` are its entries, so that one call counts for all

    def gradients(self) -> list[Tensor] | None:
        """Return the gradients; None where there is one too few or too many."""
        found = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        fit = len(found) == len(self.parameters) and all(parameter.grad is None for parameter in self.idle)
        return found if fit else None


class Stepper:
    """Step an optimiser as its `step()` does; torch's fused Adam by its kernel alone.

    For small networks there is ten times as much around that kernel as in it. The state is the optimiser's own.
    Whatever is not plain goes through `step()`: the first step, hooks, other rules.
    """

    def __init__(self, optimiser: torch.optim.Optimizer) -> None:
        self.optimiser = optimiser
        self._ready: _Ready | None = None
        self._state: Any = None  # of the optimiser when that was made; loading gives it another one

    @torch.no_grad()
    def __call__(self) -> None:
        optimiser = self.optimiser
        ready = self._ready if self._state is optimiser.state else None
        gradients = None if ready is None else ready.gradients()
        if ready is None or gradients is None or _hooked(optimiser):
            optimiser.step()
            self._ready, self._state = _ready(optimiser), optimiser.state
            return
        ready.counter.add_(1.0)
        torch._fused_adam_(
            ready.parameters,
            gradients,
            ready.means,
            ready.squares,
            [],
            ready.counts,
            lr=ready.group["lr"],
            beta1=ready.group["betas"][0],
            beta2=ready.group["betas"][1],
            weight_decay=ready.group["weight_decay"],
            eps=ready.group["eps"],
            amsgrad=False,
            maximize=False,
        )


def _ready(optimiser: torch.optim.Optimizer) -> _Ready | None:
    """Return what the kernel takes; None where the optimiser is no plain Adam, or lies on several devices."""
    group, *others = optimiser.param_groups
    if type(optimiser) is not torch.optim.Adam or others or not group["fused"] or any(map(group.get, OTHER_RULES)):
        return None
    parameters = [parameter for parameter in group["params"] if optimiser.state.get(parameter)]
    if len({(parameter.device, parameter.dtype) for parameter in parameters}) != 1:
        return None
    idle = [parameter for parameter in group["params"] if not optimiser.state.get(parameter)]
    states = [optimiser.state[parameter] for parameter in parameters]
    counter = torch.stack([state["step"] for state in states])
    counts = list(counter.unbind())
    for state, one in zip(states, counts, strict=True):
        state["step"] = one
    means, squares = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq"))
    return _Ready(group, parameters, idle, means, squares, counts, counter)


def _hooked(optimiser: torch.optim.Optimizer) -> bool:
    return bool(optimiser._optimizer_step_pre_hooks or optimiser._optimizer_step_post_hooks)

"""Optimizer steps as arithmetic on tensors, with step sizes computed on the host."""

from collections.abc import Mapping, Sequence
from operator import is_
from typing import Any

import torch
from torch import Tensor

from rlrun.compile.graph import Untraceable
from rlrun.compile.several import kinds_of

PLAIN = {  # settings with which these optimizers follow the rules below
    torch.optim.Adam: ("amsgrad", "maximize", "differentiable", "decoupled_weight_decay"),
    torch.optim.AdamW: ("amsgrad", "maximize", "differentiable"),
    torch.optim.SGD: ("maximize", "differentiable", "nesterov", "dampening"),
}


def rule_of(optimizer: torch.optim.Optimizer) -> list[type[torch.optim.Optimizer]] | None:
    """Return the kind of the optimizer of each group, if their steps can be compiled; None if not."""
    kinds = kinds_of(optimizer)
    if not PLAIN.keys() >= {*kinds}:
        return None
    pairs = [*zip(kinds, optimizer.param_groups, strict=True)]
    hooked = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    fixed = any(isinstance(group["lr"], Tensor) or any(map(group.get, PLAIN[kind])) for kind, group in pairs)
    return None if hooked or fixed else kinds


def is_hooked(parameter: Any) -> bool:
    """Return True if a parameter has hooks on its gradient."""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


def _names(kind: type[torch.optim.Optimizer], group: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of an optimizer's moments for the parameters of a group."""
    if kind is torch.optim.SGD:
        return ("momentum_buffer",) if group["momentum"] else ()
    return ("exp_avg", "exp_avg_sq")


class OptimizerRule:
    """The state and the step of an optimizer, for a graph.

    Adam and AdamW: Kingma and Ba 2015 (arXiv 1412.6980), algorithm 1, and Loshchilov and Hutter 2019 (arXiv
    1711.05101), algorithm 2. The state is the optimizer's own. The host computes bias corrections, as a compiled kernel
    would compute them again for every few parameters.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.kinds = kinds_of(optimizer)
        self.groups = optimizer.param_groups
        self.parameters: list[Tensor] = [parameter for group in self.groups for parameter in group["params"]]
        self._group_of = [number for number, group in enumerate(self.groups) for _ in group["params"]]
        self.state = optimizer.state
        self._settings = self._now()
        self._names = [*map(_names, self.kinds, self.groups)]  # of tensors of the state, by group
        pairs = [*zip(self.parameters, self._group_of, strict=True)]
        self._entries = [self.state.get(parameter) or self._begun(parameter, group) for parameter, group in pairs]
        self._moved = {number for number, parameter in enumerate(self.parameters) if self.state.get(parameter)}
        self._counted = {number for number, entry in enumerate(self._entries) if "step" in entry}
        self._taken = 0
        self._count = torch.zeros(())
        self._one = torch.ones(())  # a number would become a tensor in each step
        self.settle()

    def _begun(self, parameter: Tensor, group: int) -> dict[str, Tensor]:
        """Return the initial state of a parameter."""
        entry = {name: torch.zeros_like(parameter) for name in self._names[group]}
        if self.kinds[group] is not torch.optim.SGD:
            double = torch.get_default_dtype() == torch.float64 and not self.groups[group]["fused"]  # as torch counts
            entry["step"] = torch.zeros((), dtype=torch.float64 if double else torch.float32, device=parameter.device)
        return entry

    def tensors(self) -> list[Tensor]:
        """Return the tensors that the step reads and writes."""
        pairs = zip(self._entries, self._group_of, strict=True)
        return [*self.parameters, *(entry[name] for entry, group in pairs for name in self._names[group])]

    def settle(self) -> None:
        """Store the state of parameters that are moved in the optimizer, with a joint counter of their steps.

        Raises:
            Untraceable: they have taken different numbers of steps.
        """
        for number in (number for number in sorted(self._moved) if self._entries[number]):
            self.state[self.parameters[number]] = self._entries[number]
        self._kept = [*self.state.values()]
        entries = [self._entries[number] for number in sorted(self._moved & self._counted)]
        if not entries:
            return  # SGD counts no steps
        self._count = torch.stack([entry["step"] for entry in entries])
        for entry, count in zip(entries, self._count.unbind(), strict=True):
            entry["step"] = count
        counts = {int(count) for count in self._count.tolist()}
        if len(counts) > 1:
            raise Untraceable(None, "an optimizer has taken different numbers of steps for its parameters")
        self._taken = counts.pop()

    def is_current(self) -> bool:
        """Return True if state and settings of the optimizer are the same.

        Raises:
            Untraceable: its step can no longer be compiled, or gradients have hooks now.
        """
        same = self._now() == self._settings
        if any(map(is_hooked, self.parameters)) or not (same or rule_of(self.optimizer) == self.kinds):
            raise Untraceable(None, "gradients have hooks, or the optimizer's settings have changed")
        if not same or self.optimizer.state is not self.state:
            return False
        # not by parameter: the hash of a tensor takes longer than all else here
        return not any(self._names) or (
            len(self.state) == len(self._kept) and all(map(is_, self.state.values(), self._kept))
        )

    def sizes(self) -> list[tuple[float, float, float]]:
        """Count a step; return for each group its size, root factor and weight decay factor."""
        if self._counted:
            self._count.add_(self._one)
            self._taken += 1
        return [*map(self._size, self.kinds, self.groups)]

    def _size(self, kind: type[torch.optim.Optimizer], group: Mapping[str, Any]) -> tuple[float, float, float]:
        rate = group["lr"]
        if kind is torch.optim.SGD:
            return rate, 1.0, 1.0
        first, second = group["betas"]
        kept = 1.0 - rate * group["weight_decay"] if kind is torch.optim.AdamW else 1.0
        return rate / (1.0 - first**self._taken), (1.0 - second**self._taken) ** -0.5, kept

    def step(self, stand_in: Mapping[int, Tensor], gradients: Sequence[Tensor | None], sizes: Tensor) -> None:
        """Move the stand-ins of parameters that have a gradient; gradients: in the optimizer's order; sizes: [G, 3].

        Raises:
            Untraceable: others were moved before, so that one count does not hold for all.
        """
        moved = {number for number, gradient in enumerate(gradients) if gradient is not None} & self._counted
        if self._moved & self._counted not in (set(), moved):
            raise Untraceable(None, "an optimizer moves other parameters in some updates, and counts their steps apart")
        rows = [row.unbind() for row in sizes.unbind()]
        for number, gradient in enumerate(gradients):
            if gradient is None:
                continue
            self._moved.add(number)
            place = self._group_of[number]
            kind, group, (size, root, kept) = self.kinds[place], self.groups[place], rows[place]
            decay = group["weight_decay"]
            value, entry = stand_in[id(self.parameters[number])], self._entries[number]
            if decay and kind is not torch.optim.AdamW:
                gradient = gradient.add(value, alpha=decay)
            if kind is torch.optim.SGD:
                if entry:
                    momentum = stand_in[id(entry["momentum_buffer"])]
                    gradient = momentum.mul_(group["momentum"]).add_(gradient)
                value.sub_(size * gradient)
                continue
            first, second = group["betas"]
            mean, square = (stand_in[id(entry[name])] for name in self._names[place])
            mean.lerp_(gradient, 1.0 - first)
            square.mul_(second).addcmul_(gradient, gradient, value=1.0 - second)
            if decay and kind is torch.optim.AdamW:
                value.mul_(kept)
            value.sub_(size * mean / (square.sqrt() * root + group["eps"]))

    def _now(self) -> tuple[Any, ...]:
        hooks = bool(self.optimizer._optimizer_step_pre_hooks or self.optimizer._optimizer_step_post_hooks)
        return hooks, *[group | {"params": None, "lr": isinstance(group["lr"], Tensor)} for group in self.groups]

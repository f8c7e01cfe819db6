"""Steps of optimizers as arithmetic on tensors, with the sizes of steps made on the host."""

from collections.abc import Mapping, Sequence
from operator import is_
from typing import Any

import torch
from torch import Tensor

from rlrun.compile.graph import Untraceable

PLAIN = {  # settings with which these optimizers follow the rules below
    torch.optim.Adam: ("amsgrad", "maximize", "differentiable", "decoupled_weight_decay"),
    torch.optim.AdamW: ("amsgrad", "maximize", "differentiable"),
    torch.optim.SGD: ("maximize", "differentiable", "nesterov", "dampening"),
}


def rule_of(optimizer: torch.optim.Optimizer) -> type[torch.optim.Optimizer] | None:
    """Return the kind of an optimizer whose step can be compiled; None for others."""
    variants = PLAIN.get(type(optimizer))
    if variants is None:
        return None
    if len({bool(group.get("momentum")) for group in optimizer.param_groups}) > 1:
        return None  # only some of SGD's parameters have a state
    hooked = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    fixed = any(
        isinstance(group["lr"], Tensor) or any(group.get(name) for name in variants) for group in optimizer.param_groups
    )
    return None if hooked or fixed else type(optimizer)


def is_hooked(parameter: Any) -> bool:
    """Return True if somebody sees, or changes, the gradient of a parameter."""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


class OptimizerRule:
    """What an optimizer keeps of its parameters, and its step.

    Adam and AdamW: Kingma and Ba 2015 (arXiv 1412.6980), algorithm 1, and Loshchilov and Hutter 2019 (arXiv
    1711.05101), algorithm 2. The state is the optimizer's own. The corrections of the averages' bias are numbers of the
    host, as a compiled kernel would compute them again for every few parameters.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.kind = rule_of(optimizer)
        self.groups = optimizer.param_groups
        self.parameters: list[Tensor] = [parameter for group in self.groups for parameter in group["params"]]
        self._group_of = [number for number, group in enumerate(self.groups) for _ in group["params"]]
        self.state = optimizer.state
        self._settings = self._now()
        self._names: tuple[str, ...] = ("exp_avg", "exp_avg_sq")
        if self.kind is torch.optim.SGD:
            self._names = ("momentum_buffer",) if any(group["momentum"] for group in self.groups) else ()
        self._entries = [
            self.state.get(parameter) or self._begun(parameter, group)
            for parameter, group in zip(self.parameters, self._group_of, strict=True)
        ]
        self._moved = {number for number, parameter in enumerate(self.parameters) if self.state.get(parameter)}
        self._taken = 0
        self._count = torch.zeros(())
        self._one = torch.ones(())  # a number would be made a tensor at each step
        self.settle()

    def _begun(self, parameter: Tensor, group: int) -> dict[str, Tensor]:
        """Return the state that an optimizer begins with."""
        entry = {name: torch.zeros_like(parameter) for name in self._names}
        if self.kind is not torch.optim.SGD:
            double = torch.get_default_dtype() == torch.float64 and not self.groups[group]["fused"]  # as torch counts
            entry["step"] = torch.zeros((), dtype=torch.float64 if double else torch.float32, device=parameter.device)
        return entry

    def tensors(self) -> list[Tensor]:
        """Return what the step reads and writes."""
        return [*self.parameters, *(entry[name] for entry in self._entries for name in self._names)]

    def settle(self) -> None:
        """Let the optimizer keep the state of parameters that are moved, and count their steps together.

        Raises:
            Untraceable: they have taken different numbers of steps.
        """
        moved = sorted(self._moved) if self._names else []
        for number in moved:
            self.state[self.parameters[number]] = self._entries[number]
        self._kept = [*self.state.values()]
        if self.kind is torch.optim.SGD or not moved:
            return  # SGD counts no steps
        entries = [self._entries[number] for number in moved]
        self._count = torch.stack([entry["step"] for entry in entries])
        for entry, count in zip(entries, self._count.unbind(), strict=True):
            entry["step"] = count
        counts = {int(count) for count in self._count.tolist()}
        if len(counts) > 1:
            raise Untraceable(None, "an optimizer has taken different numbers of steps for its parameters")
        self._taken = counts.pop()

    def is_current(self) -> bool:
        """Return True if the optimizer keeps the same state and settings, and nobody sees its gradients.

        Raises:
            Untraceable: its step can no longer be compiled.
        """
        same = self._now() == self._settings
        if any(map(is_hooked, self.parameters)) or not (same or rule_of(self.optimizer) is self.kind):
            raise Untraceable(None, "somebody sees gradients, or the optimizer has other settings by now")
        if not same or self.optimizer.state is not self.state:
            return False
        # not by parameter: the hash of a tensor takes longer than all else here
        return not self._names or (
            len(self.state) == len(self._kept) and all(map(is_, self.state.values(), self._kept))
        )

    def sizes(self) -> list[tuple[float, float, float]]:
        """Count a step; return, by group, its size, the factor of roots of squares, and the share of weights kept."""
        if self.kind is not torch.optim.SGD:
            self._count.add_(self._one)
            self._taken += 1
        return [self._size(group) for group in self.groups]

    def _size(self, group: Mapping[str, Any]) -> tuple[float, float, float]:
        rate = group["lr"]
        if self.kind is torch.optim.SGD:
            return rate, 1.0, 1.0
        first, second = group["betas"]
        kept = 1.0 - rate * group["weight_decay"] if self.kind is torch.optim.AdamW else 1.0
        return rate / (1.0 - first**self._taken), (1.0 - second**self._taken) ** -0.5, kept

    def step(self, stand_in: Mapping[int, Tensor], gradients: Sequence[Tensor | None], sizes: Tensor) -> None:
        """Move the stand-ins of parameters that have a gradient; gradients: in the optimizer's order; sizes: [G, 3].

        Raises:
            Untraceable: others were moved before, so that one count does not hold for all.
        """
        moved = {number for number, gradient in enumerate(gradients) if gradient is not None}
        if self._moved and self._moved != moved and self._names and self.kind is not torch.optim.SGD:
            raise Untraceable(None, "an optimizer moves other parameters in some updates, and counts their steps apart")
        rows = [row.unbind() for row in sizes.unbind()]
        for number, gradient in enumerate(gradients):
            if gradient is None:
                continue
            self._moved.add(number)
            group, (size, root, kept) = self.groups[self._group_of[number]], rows[self._group_of[number]]
            decay = group["weight_decay"]
            value, entry = stand_in[id(self.parameters[number])], self._entries[number]
            if decay and self.kind is not torch.optim.AdamW:
                gradient = gradient.add(value, alpha=decay)
            if self.kind is torch.optim.SGD:
                if self._names:
                    momentum = stand_in[id(entry["momentum_buffer"])]
                    gradient = momentum.mul_(group["momentum"]).add_(gradient)
                value.sub_(size * gradient)
                continue
            first, second = group["betas"]
            mean, square = (stand_in[id(entry[name])] for name in self._names)
            mean.lerp_(gradient, 1.0 - first)
            square.mul_(second).addcmul_(gradient, gradient, value=1.0 - second)
            if decay and self.kind is torch.optim.AdamW:
                value.mul_(kept)
            value.sub_(size * mean / (square.sqrt() * root + group["eps"]))

    def _now(self) -> tuple[Any, ...]:
        hooks = bool(self.optimizer._optimizer_step_pre_hooks or self.optimizer._optimizer_step_post_hooks)
        return hooks, *[group | {"params": None, "lr": isinstance(group["lr"], Tensor)} for group in self.groups]

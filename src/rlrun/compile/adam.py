"""The step of Adam as tensors, so that a compiler fuses it with what stands before and behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from typing import Any

import torch
from torch import Tensor

from rlrun.nn.stepper import hooked


class Moments:
    """What Adam keeps of parameters (Kingma and Ba 2015, arXiv 1412.6980, algorithm 1), and its settings.

    Args:
        optimizer: a plain one; parameters that never had a gradient begin with zeros, as at their first one.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        (self.group,) = optimizer.param_groups
        self.parameters: list[Tensor] = self.group["params"]
        self._state = optimizer.state
        self._begun = [parameter for parameter in self.parameters if not optimizer.state.get(parameter)]
        for parameter in self._begun:
            optimizer.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        states = [optimizer.state[parameter] for parameter in self.parameters]
        self.counts, self.means, self.squares = (
            [state[name] for state in states] for name in ("step", "exp_avg", "exp_avg_sq")
        )
        self._settings = self._now()
        self._moved: list[int] = []
        self._states: list[Any] = []
        self._used: list[tuple[dict[str, Any], Tensor, Tensor, Tensor]] = []

    @property
    def tensors(self) -> list[Tensor]:
        return [*self.parameters, *self.counts, *self.means, *self.squares]

    def settle(self) -> None:
        """Let nothing be kept of parameters that have not moved, as ever."""
        moved = {id(self.parameters[number]) for number in self._moved}
        for parameter in self._begun:
            if id(parameter) not in moved:
                del self._state[parameter]
        self._states = list(self._state.values())
        tensors = [(self.means[number], self.squares[number], self.counts[number]) for number in self._moved]
        entries = [self._state[self.parameters[number]] for number in self._moved]
        self._used = [(entry, *moments) for entry, moments in zip(entries, tensors, strict=True)]

    def fits(self, optimizer: torch.optim.Optimizer) -> bool:
        """Tell whether the optimizer still keeps these very tensors, and has the same settings."""
        if optimizer.state is not self._state or optimizer.param_groups[0] is not self.group:
            return False
        if not is_plain(optimizer):
            return False
        states = optimizer.state.values()  # to find a parameter by its hash takes longer
        if len(states) != len(self._states) or not all(map(is_, states, self._states)):
            return False
        for entry, mean, square, count in self._used:
            averages = entry.get("exp_avg") is mean and entry.get("exp_avg_sq") is square
            if not averages or entry.get("step") is not count:
                return False
        return self._now() == self._settings

    def step(self, of: Callable[[Tensor], Tensor], gradients: Sequence[Tensor | None], rate: Tensor) -> None:
        """Move parameters that have a gradient.

        of: what stands for each tensor.
        """
        (first, second), eps, decay = self._settings
        self._moved = [number for number, gradient in enumerate(gradients) if gradient is not None]
        rows = list(zip(self.parameters, self.counts, self.means, self.squares, gradients, strict=True))
        for parameter, count, mean, square, gradient in (rows[number] for number in self._moved):
            assert gradient is not None
            value, steps, average, spread = map(of, (parameter, count, mean, square))
            steps.add_(1.0)
            bias, wide = ((1.0 - beta ** steps.double()).float() for beta in (first, second))
            gradient = gradient.add(value, alpha=decay) if decay else gradient
            average.lerp_(gradient, 1.0 - first)
            spread.mul_(second).addcmul_(gradient, gradient, value=1.0 - second)
            value.sub_(rate / bias * average / (spread.sqrt() / wide.sqrt() + eps))

    def _now(self) -> tuple[Any, float, float]:
        return tuple(self.group["betas"]), self.group["eps"], self.group["weight_decay"]


def is_plain(optimizer: torch.optim.Optimizer | None) -> bool:
    """Tell whether an optimizer is Adam by the rule that `Moments` follows."""
    if type(optimizer) is not torch.optim.Adam or len(optimizer.param_groups) != 1:
        return False
    group = optimizer.param_groups[0]
    variants = ("amsgrad", "maximize", "differentiable", "decoupled_weight_decay")
    fixed = isinstance(group["lr"], torch.Tensor)
    return not (any(group[name] for name in variants) or fixed or hooked(optimizer))

"""Where gradients lie."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rlrun.runs import learners

LARGEST = 65_536  # numbers; adding gradients of larger networks into zeros takes longer than it spares
ALIGNED = 16  # numbers: what a parameter's part is a multiple of


class Gradients:
    """The gradients of parameters, those of small networks one behind the other, so that one call sees all of them.

    A backward pass adds into them. Parameters that it did not reach have no gradient afterwards, as ever: torch
    counts for each tensor how often something was written there.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self._decided = False  # whether they lie one behind the other
        self._flat: Tensor | None = None
        self._parts: list[Tensor] = []
        self._before: list[int] = []  # how often each part was written, when all were cleared

    @property
    def flat(self) -> Tensor | None:
        """All numbers, and zeros between them and for parameters without a gradient; None where they lie apart."""
        return self._flat

    def clear(self) -> None:
        """Have none, before a backward pass."""
        if not self._decided:
            self._make()
        if self._flat is None:
            for parameter in self.parameters:
                parameter.grad = None
            return
        self._flat.zero_()
        for parameter, part in zip(self.parameters, self._parts, strict=True):
            if parameter.grad is not part:
                parameter.grad = part
        self._before = [part._version for part in self._parts]

    def settle(self) -> None:
        """Take the gradient from parameters that the backward pass did not reach."""
        for parameter, part, before in zip(self.parameters, self._parts, self._before, strict=False):
            if part._version == before:
                parameter.grad = None

    def average(self) -> None:
        """Let them be the mean of all learners' gradients."""
        if learners.count() == 1:
            return
        if self._flat is not None:
            learners.mean_(self._flat)
            return
        present = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        if present:
            together = learners.mean_(torch.cat([gradient.flatten() for gradient in present]))
            parts = torch.split(together, [gradient.numel() for gradient in present])
            shaped = [part.view_as(gradient) for part, gradient in zip(parts, present, strict=True)]
            torch._foreach_copy_(present, shaped)

    def _make(self) -> None:
        """Make room, if the parameters are few numbers of one kind in one place."""
        self._decided = True
        kinds = {(parameter.device, parameter.dtype) for parameter in self.parameters}
        sizes = [-(-parameter.numel() // ALIGNED) * ALIGNED for parameter in self.parameters]
        if len(kinds) != 1 or sum(sizes) > LARGEST:
            return
        ((device, dtype),) = kinds
        self._flat = torch.zeros(sum(sizes), device=device, dtype=dtype)
        # `data` has a counter of its own, a view would share that of the whole
        parts = [part.data for part in torch.split(self._flat, sizes)]
        self._parts = [
            part[: parameter.numel()].view(parameter.shape)
            for parameter, part in zip(self.parameters, parts, strict=True)
        ]

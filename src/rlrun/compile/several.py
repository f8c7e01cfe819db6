"""Several optimizers, each of some groups of parameters, as one."""

from collections.abc import Callable, Sequence
from typing import Any

import torch


class Several(torch.optim.Optimizer):
    """Step each group of parameters by one of several optimizers.

    Groups and state are those of one optimizer, so that schedules, checkpoints and forks treat it as such. Each group
    has the number of its optimizer as `part`.

    Args:
        groups: of parameters, complete ones of these optimizers.
        optimizers: that step them.
    """

    def __init__(self, groups: Sequence[dict[str, Any]], optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.optimizers = optimizers
        defaults = {"lr": optimizers[0].defaults["lr"], "differentiable": False}  # torch adds the second at loading
        super().__init__(groups, defaults)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy has; torch leaves further attributes out."""
        return super().__getstate__() | {"optimizers": self.optimizers}

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Step all parameters; closure: not supported."""
        for number, optimizer in enumerate(self.optimizers):
            # Loading a state, and a copy, replace groups and state of this one alone.
            optimizer.param_groups = [group for group in self.param_groups if group["part"] == number]
            optimizer.state = self.state
            optimizer.step()


def kinds_of(optimizer: torch.optim.Optimizer) -> list[type[torch.optim.Optimizer]]:
    """Return the class of the optimizer that steps each group of parameters."""
    if not isinstance(optimizer, Several):
        return [type(optimizer)] * len(optimizer.param_groups)
    return [type(optimizer.optimizers[group["part"]]) for group in optimizer.param_groups]

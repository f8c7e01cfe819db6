"""One optimizer made of several, each for some groups of parameters."""

from collections.abc import Callable, Sequence
from typing import Any

import torch


class Several(torch.optim.Optimizer):
    """Steps each group of parameters by one of several optimizers.

    Groups and state are those of one optimizer, so that schedules, checkpoints and forks need no special case. Each
    group has the number of its optimizer as `part`.

    Args:
        groups: of parameters, with all settings of their optimizers.
        optimizers: of the groups.
    """

    def __init__(self, groups: Sequence[dict[str, Any]], optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.optimizers = optimizers
        defaults = {"lr": optimizers[0].defaults["lr"], "differentiable": False}  # torch adds the second at loading
        super().__init__(groups, defaults)

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes of a copy, with `optimizers`, which torch would leave out."""
        return super().__getstate__() | {"optimizers": self.optimizers}

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Step all parameters; closure: not supported."""
        for number, optimizer in enumerate(self.optimizers):
            # Loading and copying replace only the groups and the state of this object.
            optimizer.param_groups = [group for group in self.param_groups if group["part"] == number]
            optimizer.state = self.state
            optimizer.step()


def kinds_of(optimizer: torch.optim.Optimizer) -> list[type[torch.optim.Optimizer]]:
    """Return the class of the optimizer that steps each group of parameters."""
    if not isinstance(optimizer, Several):
        return [type(optimizer)] * len(optimizer.param_groups)
    return [type(optimizer.optimizers[group["part"]]) for group in optimizer.param_groups]

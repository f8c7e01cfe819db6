"""A user's plain module in the place of a network's encoder and layers."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from rlrun.core.errors import ConfigError
from rlrun.core.typing import Tree

Layers = nn.Module | Callable[..., nn.Module]  # a module, or a recipe of one


class OwnLayers(nn.Module):
    """A module of one's own. It returns rows [B, F]; several outputs, such as (mean, log_std), side by side.

    Args:
        layers: the module or a recipe of it.
    """

    def __init__(self, layers: Layers) -> None:
        super().__init__()
        self.module = layers if isinstance(layers, nn.Module) else layers()

    def forward(self, *inputs: Tree) -> Tensor:
        outputs = self.module(*inputs)
        if isinstance(outputs, Tensor):
            return _row(outputs)
        return torch.cat([_row(part) for part in outputs], -1)


class OwnMembers(nn.ModuleList):
    """M modules of one's own: [B, …] -> [M, B, F].

    Raises:
        ConfigError: one module shall be several members.
    """

    def __init__(self, layers: Layers, members: int) -> None:
        if members > 1 and isinstance(layers, nn.Module):
            raise ConfigError(f"layers: one module cannot be {members} members; a recipe (_partial_: true) makes each")
        super().__init__(OwnLayers(layers) for _ in range(members))

    def forward(self, *inputs: Tree) -> Tensor:
        """Evaluate every member on the same rows."""
        return torch.stack([member(*inputs) for member in self])


class Columns(nn.Module):
    """The columns from `first` to `last` of rows [..., F], in the place of a last layer."""

    def __init__(self, first: int, last: int | None) -> None:
        super().__init__()
        self.first, self.last = first, last

    def forward(self, rows: Tensor) -> Tensor:
        return rows[..., self.first : self.last]


def require_outputs(got: int, wanted: dict[int, str], network: Layers) -> None:
    """Refuse a module that gives another number of outputs.

    Args:
        got: F.
        wanted: meanings of the numbers of outputs that fit.
        network: the module or its recipe, for the message.

    Raises:
        ConfigError: F is not among those wanted.
    """
    if got not in wanted:
        listed = ", or ".join(f"[B, {count}] ({meaning})" for count, meaning in wanted.items())
        name = getattr(network, "func", network)
        kind = getattr(name, "__name__", type(name).__name__)
        raise ConfigError(f"{kind} gives [B, {got}], wanted {listed}")


def _row(output: Tensor) -> Tensor:
    return output if output.dim() > 1 else output.unsqueeze(-1)

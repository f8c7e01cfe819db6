"""Plain modules of a user in place of a network's encoder and layers."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rlrun.core.errors import ConfigError
from rlrun.core.typing import Tree

Layers = nn.Module | Callable[..., nn.Module]  # a module, or a recipe of one


class OwnLayers(nn.Module):
    """A user's module, with checked outputs [B, F]; several outputs, such as (mean, log_std), are concatenated.

    Args:
        layers: the module or a recipe of it.
        behind: width of the last of several outputs, 0 for any; None = only one output is allowed.
        hint: appended to the message about several outputs.

    Raises:
        ConfigError: a call of the module returns something else, or another number of rows.
    """

    def __init__(self, layers: Layers, *, behind: int | None = None, hint: str = "") -> None:
        super().__init__()
        self.module = layers if isinstance(layers, nn.Module) else layers()
        self.behind, self.hint = behind, hint

    def forward(self, *inputs: Tree) -> Tensor:
        outputs = self.module(*inputs)
        if isinstance(outputs, Tensor):
            return self._row(outputs, inputs)
        if self.behind is None or not isinstance(outputs, tuple | list) or not outputs:
            wanted = "a tensor [B, F]" if self.behind is None else "a tensor [B, F] or a tuple of them"
            raise ConfigError(f"{self.name} gives a {type(outputs).__name__}, wanted {wanted}{self.hint}")
        parts = [self._row(output, inputs) for output in outputs]
        if self.behind and parts[-1].shape[-1] != self.behind:
            widths = [part.shape[-1] for part in parts]
            raise ConfigError(f"{self.name} gives outputs of widths {widths}, wanted {self.behind} as the last one")
        return torch.cat(parts, -1)

    @property
    def name(self) -> str:
        """The module's class."""
        return type(self.module).__name__

    def _row(self, output: Any, inputs: tuple[Tree, ...]) -> Tensor:
        first: Any = inputs[0]
        while isinstance(first, dict):
            first = next(iter(first.values()))
        if not isinstance(output, Tensor) or not output.dim() or output.shape[0] != first.shape[0]:
            got = [*output.shape] if isinstance(output, Tensor) else f"a {type(output).__name__}"
            raise ConfigError(f"{self.name} gives {got} of {len(first)} rows, wanted [{len(first)}, F]")
        row = output if output.dim() > 1 else output.unsqueeze(-1)
        return row.to(torch.get_default_dtype()) if row.dtype == torch.float64 else row


class OwnMembers(nn.ModuleList):
    """M modules of a user as an ensemble: [B, …] -> [M, B, F].

    Raises:
        ConfigError: a single module is given for several members.
    """

    def __init__(self, layers: Layers, members: int) -> None:
        if members > 1 and isinstance(layers, nn.Module):
            raise ConfigError(f"layers: one module cannot be {members} members; a recipe (_partial_: true) makes each")
        hint = "; a module is one critic, and `members` makes several"
        super().__init__(OwnLayers(layers, hint=hint) for _ in range(members))

    def forward(self, *inputs: Tree) -> Tensor:
        """Evaluate every member on the same rows."""
        return torch.stack([member(*inputs) for member in self])


class Columns(nn.Module):
    """Columns `first` to `last` of rows [..., F], in place of a last layer."""

    def __init__(self, first: int, last: int | None) -> None:
        super().__init__()
        self.first, self.last = first, last

    def forward(self, rows: Tensor) -> Tensor:
        return rows[..., self.first : self.last]


def require_outputs(got: int, wanted: dict[int, str], network: Layers) -> None:
    """Refuse a module that gives another number of outputs.

    Args:
        got: F.
        wanted: accepted number of outputs -> its meaning.
        network: the module or its recipe, for the message.

    Raises:
        ConfigError: F is not among those wanted.
    """
    if got not in wanted:
        listed = ", or ".join(f"[B, {count}] ({meaning})" for count, meaning in wanted.items())
        name = getattr(network, "func", network)
        kind = getattr(name, "__name__", type(name).__name__)
        raise ConfigError(f"{kind} gives [B, {got}], wanted {listed}")

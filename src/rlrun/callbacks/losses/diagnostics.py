"""Diagnostics of a loss: learning rates, sizes of steps, dead units, and a check for finite numbers.

Metrics use the gradients and optimizer states of the newest update. Reading them runs no network and draws no number.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlrun.compile.several import kinds_of
from rlrun.core.errors import DataError
from rlrun.nn.ensemble import Ensemble, StackedLinear

CHECKED_TOGETHER = 256  # updates whose losses are checked at once, unless metrics are read before
DENSE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
BETWEEN = (nn.Dropout, nn.LayerNorm, nn.BatchNorm1d, nn.GroupNorm)  # may stand between a layer and its activation
ADAMS = (torch.optim.Adam, torch.optim.AdamW)


class Diagnostics:
    """Diagnostics of the newest step of a network's optimizer.

    Args:
        network: is trained.
        optimizer: that steps it; None = nothing is trained.
        others: other losses train it, too, and may overwrite gradients before metrics are read; so it has no metrics.

    Attributes:
        layers: hidden layers, whose units are counted.
        gradients: of their weights; None = the weights' `grad`.
    """

    def __init__(self, network: nn.Module, optimizer: torch.optim.Optimizer | None, *, others: bool) -> None:
        self.optimizer = None if others else optimizer
        self.layers = [] if self.optimizer is None else hidden_layers(network)
        self.gradients: Sequence[Tensor | None] | None = None

    def metrics(self, name: str) -> dict[str, Tensor]:
        """Return `update_ratio` and `dead_units` of a loss of this name, where they are defined."""
        if self.optimizer is None:
            return {}
        vitals = {"update_ratio": update_ratio(self.optimizer), "dead_units": dead_units(self.layers, self.gradients)}
        return {f"{kind}/{name}": value for kind, value in vitals.items() if value is not None}


class FiniteCheck:
    """Check that losses are finite, those of many updates at once, so no update waits for the device."""

    def __init__(self) -> None:
        self._losses = torch.empty(0)
        self._places: Sequence[Tensor] = ()  # of each of them
        self._count = 0

    def add(self, loss: Tensor) -> bool:
        """Store the loss of an update; return True if it is time to check them."""
        if not self._places:
            self._losses = torch.zeros(CHECKED_TOGETHER, device=loss.device)
            self._places = self._losses.unbind()
        self._places[self._count].copy_(loss)  # single tensors would fragment the heap
        self._count += 1
        return self._count == CHECKED_TOGETHER

    def require(self, name: str, updates: int) -> None:
        """Refuse losses that are not finite.

        Args:
            name: of the callback.
            updates: number of its updates, the newest one included.

        Raises:
            DataError: naming the first such update.
        """
        losses, self._count = self._losses[: self._count], 0
        finite = losses.isfinite().tolist()
        if not all(finite):
            first = finite.index(False)
            raise DataError(
                f"callbacks.{name}: the loss is {float(losses[first])} at its update "
                f"{updates - len(losses) + first + 1:,}; a smaller algorithm.lr, algorithm.max_grad_norm "
                "or rewards of another scale may keep it finite"
            )
        losses.zero_()


def learning_rates(optimizer: torch.optim.Optimizer, name: str) -> dict[str, Any]:
    """Return the learning rate of each group of an optimizer's parameters as a metric, by the group's name."""
    places = enumerate(optimizer.param_groups)
    rates = [(group.get("name", f"{index or ''}"), group["lr"]) for index, group in places]
    return {f"learning_rate/{name}" + (f"/{group}" if group else ""): rate for group, rate in rates}


@torch.no_grad()
def update_ratio(optimizer: torch.optim.Optimizer) -> Tensor | None:
    """Return the Euclidean norm of the newest step of Adam, relative to that of the weights.

    None for other optimizers, before the first step, and without matrices.
    """
    steps, weights = [], []
    for kind, group in zip(kinds_of(optimizer), optimizer.param_groups, strict=True):
        if not issubclass(kind, ADAMS):
            continue
        first, second = group["betas"]
        for parameter in group["params"]:
            state = optimizer.state.get(parameter)
            if not state or parameter.dim() < 2:
                continue
            count = state["step"]
            mean = state["exp_avg"] / (1.0 - first**count)
            deviation = (state["exp_avg_sq"] / (1.0 - second**count)).sqrt_().add_(group["eps"])
            steps.append(mean.div_(deviation).norm() * group["lr"])
            weights.append(parameter.norm())
    if not steps:
        return None
    ratio: Tensor = torch.stack(steps).norm() / torch.stack(weights).norm().clamp(min=1e-12)
    return ratio


@torch.no_grad()
def dead_units(layers: Sequence[nn.Module], gradients: Sequence[Tensor | None] | None = None) -> Tensor | None:
    """Return the share of hidden units without any gradient in the newest update.

    Such a unit is a rectifier that is off, or a saturated tanh, for every row of the batch.

    layers: from `hidden_layers`.
    gradients: of their weights; None = the weights' `grad`.
    """
    if gradients is None:
        gradients = [layer.weight.grad if isinstance(layer.weight, Tensor) else None for layer in layers]
    moved = [_reached(layer, part) for layer, part in zip(layers, gradients, strict=True) if part is not None]
    return 1.0 - torch.cat(moved).float().mean() if moved else None


def hidden_layers(network: nn.Module) -> list[nn.Module]:
    """Return the layers of a network that are followed by an activation."""
    layers: list[nn.Module] = []
    for module in network.modules():
        if isinstance(module, Ensemble):
            layers += [*module.layers][:-1]
        elif isinstance(module, nn.Sequential):
            layers += _before_activations(module)
    return layers


def _before_activations(layers: nn.Sequential) -> Iterator[nn.Module]:
    before: nn.Module | None = None
    for layer in layers:
        if isinstance(layer, DENSE):
            before = layer
        elif before is not None and not isinstance(layer, BETWEEN):
            yield before
            before = None


def _reached(layer: nn.Module, gradient: Tensor) -> Tensor:
    """Return which units of a layer [M × out] the gradient of its weight reached."""
    if isinstance(layer, StackedLinear):  # [M, in, out]
        return gradient.ne(0).any(1).flatten()
    return gradient.ne(0).flatten(1).any(1)

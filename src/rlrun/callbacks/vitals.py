"""How a network takes its training, read off what the newest update left behind; computed only when metrics are read.

Nothing here runs a network or draws a number: gradients and the optimiser's averages lie there anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from rlrun.nn.ensemble import Ensemble, StackedLinear

DENSE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
BETWEEN = (nn.Dropout, nn.LayerNorm)  # may stand between a layer and its activation
ADAMS = (torch.optim.Adam, torch.optim.AdamW)


@torch.no_grad()
def update_ratio(optimiser: torch.optim.Optimizer) -> Tensor | None:
    """Return the size of the newest step of Adam as a share of the size of what it moves, both as Euclidean norms.

    None for other optimisers, before the first step, and where only single numbers are trained.
    """
    if not isinstance(optimiser, ADAMS):
        return None
    steps, weights = [], []
    for group in optimiser.param_groups:
        first, second = group["betas"]
        for parameter in group["params"]:
            state = optimiser.state.get(parameter)
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
def dead_units(layers: Sequence[nn.Module]) -> Tensor | None:
    """Return the share of hidden units through which the newest update sent no gradient at all.

    A rectifier that is off, or a tanh that is at its end, for every row of the batch is such a unit.

    layers: hidden ones, as `hidden_layers` finds them.
    """
    moved = [reached for layer in layers if (reached := _reached(layer)) is not None]
    return 1.0 - torch.cat(moved).float().mean() if moved else None


def hidden_layers(network: nn.Module) -> list[nn.Module]:
    """Return the layers of a network behind which an activation stands."""
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


def _reached(layer: nn.Module) -> Tensor | None:
    """Return which units of a layer [M × out] a gradient reached; None where the layer has none."""
    weight = layer.weight
    if not isinstance(weight, Tensor) or weight.grad is None:
        return None
    if isinstance(layer, StackedLinear):  # [M, in, out]
        return weight.grad.ne(0).any(1).flatten()
    return weight.grad.ne(0).flatten(1).any(1)

"""Metrics of an update: tensors as hooks return them, reduced when somebody reads them."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlrun import ops


class Metric(NamedTuple):
    """Tensors of an update, and how they become one number.

    tensors: [...] each, detached when they are stored.
    by: name of the reduction, a key of `REDUCTIONS`; or a function of the tensors.
    valid: flags [...]; other entries do not count. None = all count.
    """

    tensors: tuple[Tensor, ...]
    by: str | Callable[..., Tensor] = "mean"
    valid: Tensor | None = None


def explained_variance(value: Tensor, return_: Tensor) -> Tensor:
    """Return 1 - Var(return - value) / Var(return): 1 for exact values, 0 for a constant."""
    return 1.0 - (return_ - value).var() / return_.var().clamp(min=1e-12)


REDUCTIONS: Mapping[str, Callable[..., Tensor]] = {
    "mean": lambda value: value.float().mean(),
    "size": lambda value: value.abs().mean(),
    "squares": lambda value: value.square().sum(-1).mean(),  # of rows of numbers
    "saturated": ops.saturated,  # of actions within [-1, 1]
    "saturated_mean": lambda mean: ops.saturated(mean.tanh()),
    "explained_variance": explained_variance,
}


class MetricStore:
    """The newest metrics of one callback; a mapping that hooks return replaces the one before.

    They are reduced when they are read, without a network and without random numbers.
    """

    def __init__(self) -> None:
        self.newest: dict[str, Any] = {}
        self.fresh = False  # of an update of this process

    def load(self, metrics: Mapping[str, float]) -> None:
        """Keep the numbers of a checkpoint until the next update."""
        self.newest, self.fresh = dict(metrics), False

    def put(self, metrics: Mapping[str, Any]) -> None:
        """Keep metrics in place of the ones before: tensors, which stand for their mean, numbers or `Metric`s."""
        self.newest, self.fresh = {name: detached(value) for name, value in metrics.items()}, True

    @torch.no_grad()
    def read(self) -> dict[str, Any]:
        """Return numbers and tensors of one number, by name."""
        return {name: reduced(value) for name, value in self.newest.items()}


def detached(value: Any) -> Any:
    """Return a metric without the graph of its tensors."""
    if isinstance(value, Metric):
        return Metric(tuple([tensor.detach() for tensor in value.tensors]), value.by, value.valid)
    return value.detach() if isinstance(value, Tensor) and value.requires_grad else value


def reduced(value: Any) -> Any:
    """Return a metric as a number, or a tensor of one number."""
    if isinstance(value, Metric):
        tensors = value.tensors if value.valid is None else tuple(tensor[value.valid] for tensor in value.tensors)
        return (REDUCTIONS[value.by] if isinstance(value.by, str) else value.by)(*tensors)
    if isinstance(value, Tensor) and value.dim():
        return value.float().mean()
    return value


def as_numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return metrics as numbers, for a checkpoint."""
    numbers = {name: value for name, value in metrics.items() if not isinstance(value, Tensor) or value.numel() == 1}
    return {name: float(value.float()) if isinstance(value, Tensor) else value for name, value in numbers.items()}

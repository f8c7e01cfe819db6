"""What the losses of intrinsic rewards have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from rlrun.callbacks.loss import LossCallback, Optimiser


class BonusLoss(LossCallback):
    """Train the network behind a bonus on what that network saw, and report the mean bonus.

    A subclass writes `loss`, which asks for the view of its bonus by name, and ends it with `counted`.
    """

    def __init__(self, network: nn.Module, optimiser: Optimiser, **options: Any) -> None:
        super().__init__(network, optimiser, **options)
        self._tensors: dict[str, Tensor] = {}  # of the newest update, by the name of the metric

    def counted(self, elements: Tensor, valid: Tensor | None, **tensors: Tensor) -> Tensor:
        """Return the loss of each element, 0 where a row is no transition; keep the other tensors [...] for metrics."""
        self._tensors = {name: value.detach() for name, value in tensors.items()}
        return elements if valid is None else elements * valid

    @property
    def metrics(self) -> Mapping[str, Any]:
        means = {f"intrinsic/{self.name}_{name}": value.float().mean() for name, value in self._tensors.items()}
        return {**super().metrics, **means}

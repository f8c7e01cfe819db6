"""What the losses of critics have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from rlrun import ops
from rlrun.callbacks.loss import LossCallback, Optimiser
from rlrun.nn import Critics
from rlrun.typing import Tree


class CriticLoss(LossCallback):
    """Distance of each member's value of the action taken to the common target, summed over members.

    Args:
        network: the critics.
        huber: from this distance on the loss grows linearly; None = squared everywhere.
    """

    def __init__(self, network: Critics, optimiser: Optimiser, *, huber: float | None = None, **options: Any) -> None:
        super().__init__(network, optimiser, **options)
        self.critics = network
        self.codec = network.codec
        self.huber = huber
        self._value: Tensor | None = None

    def loss(self, observation: Tree, action: Tree, q_target: Tensor) -> Tensor:
        c, k = self.codec.split(action)
        value = self.values(observation, c)  # [M, B] or [M, B, K]
        if k is not None:
            value = self.codec.select(value, k)  # [M, B, K] -> [M, B]
        self._value = value.detach()
        return ops.distance(value, q_target, huber=self.huber).sum(0)

    def values(self, observation: Tree, c: Tensor | None) -> Tensor:
        """Return what members say: [M, B], or [M, B, K] of each choice."""
        found: Tensor = self.critics(observation, c)
        return found

    def error(self, elements: Tensor) -> Tensor:
        """Return the TD error [B] that gives this loss if all members make it; for one member its own."""
        members = 1 if self._value is None else len(self._value)
        return ops.error_size(elements / members, huber=self.huber)

    @property
    def metrics(self) -> Mapping[str, Any]:
        value = {} if self._value is None else {"value/mean": self._value.mean()}
        return {**super().metrics, **value}

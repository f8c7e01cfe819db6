"""What the losses of critics have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from rlrun import ops
from rlrun.callbacks.loss import LossCallback, Optimiser
from rlrun.nn import Critics, ImplicitCritics, Numbers, told_by
from rlrun.typing import Tree


class CriticLoss(LossCallback):
    """Distance of what each member tells of the action taken to the common target, summed over members.

    Args:
        network: the critics.
        huber: from this distance on the loss grows linearly; None = squared everywhere, or linear for quantiles.
    """

    def __init__(
        self, network: Critics | ImplicitCritics, optimiser: Optimiser, *, huber: float | None = None, **options: Any
    ) -> None:
        super().__init__(network, optimiser, **options)
        self.critics = network
        self.codec = network.codec
        self._told, self.tells = told_by(network)
        self.huber = huber
        self.scale: Tensor | None = None  # of differences, where somebody sets it: `TargetScale`
        self._newest: Tensor | None = None  # told of the newest update's actions, [M, B], [M, B, N] or [M, R, B]
        self._target: Tensor | None = None  # of these

    def loss(self, observation: Tree, action: Tree, q_target: Tensor) -> Tensor:
        c, k = self.codec.split(action)
        values = self.told(observation, c)
        if k is not None:
            values = self.tells.select(values, k, self.codec)  # without the axis of choices
        self._newest, self._target = values.detach(), q_target
        values, q_target = self.scaled(values, q_target)
        return self.tells.distance(values, q_target, huber=self.huber).sum(0)

    def scaled(self, values: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return both as they are compared."""
        return (values, target) if self.scale is None else (values * self.scale, target * self.scale)

    def told(self, observation: Tree, c: Tensor | None) -> Tensor:
        """Return what members tell: [M, B], or [M, B, K] of each choice; as `tells` says, of several numbers."""
        return self._told(observation, c)

    def error(self, elements: Tensor) -> Tensor:
        """Return the TD error [B] that gives this loss if all members make it; for one member its own.

        Of distributions it is the distance of their means, averaged over members.
        """
        if self._newest is None or self._target is None:
            return ops.error_size(elements, huber=self.huber)
        if isinstance(self.tells, Numbers):
            error = ops.error_size(elements / len(self._newest), huber=self.huber)
            return error if self.scale is None else error / self.scale
        target = self._target if self._target.dim() == elements.dim() else self._target.mean(-1)
        return (self.tells.mean(self._newest) - target).abs().mean(0)

    @property
    def metrics(self) -> Mapping[str, Any]:
        if self._newest is None or self._target is None:
            return super().metrics
        summary = {**self.tells.means(self.tells.mean(self._newest)), **self.tells.metrics(self._target)}
        return {**super().metrics, **summary}

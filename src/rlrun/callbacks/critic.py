"""The loss of critics, the scale of its targets, and priorities by its errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from rlrun import ops
from rlrun.callbacks.loss import LossCallback, Optimizer, plain
from rlrun.core.errors import ConfigError, RlrunError, WiringError, did_you_mean
from rlrun.core.typing import Tree
from rlrun.memory import Mix, Table
from rlrun.nn import Bins, Critics, ImplicitCritics, Numbers, Rewards, value_head_of
from rlrun.nn.normalizer import Statistics
from rlrun.training.callback import Callback


class CriticLoss(LossCallback):
    """The distance between the values of members and the common target, summed over members.

    Args:
        network: the critics.
        huber: from this distance on the loss grows linearly; None = squared everywhere, or linear for quantiles.
    """

    def __init__(
        self, network: Critics | ImplicitCritics, optimizer: Optimizer, *, huber: float | None = None, **options: Any
    ) -> None:
        super().__init__(network, optimizer, **options)
        self.critics = network
        self.codec = network.codec
        self._raw_output, self.value_head = value_head_of(network)
        self.huber = huber
        self.scale: Tensor | None = None  # of differences; set by `TargetScale`
        self._newest: Tensor | None = None  # values of the newest update's actions, [M, B], [M, B, N] or [M, R, B]
        self._target: Tensor | None = None  # of these

    def loss(self, observation: Tree, action: Tree, q_target: Tensor) -> Tensor:
        c, k = self.codec.split(action)
        values = self.raw_output(observation, c)
        if k is not None:
            values = self.value_head.select(values, k, self.codec)  # without the axis of choices
        self._newest, self._target = values.detach(), q_target
        values, q_target = self.scaled(values, q_target)
        return self.value_head.distance(values, q_target, huber=self.huber).sum(0)

    def scaled(self, values: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return both, multiplied by the scale."""
        return (values, target) if self.scale is None else (values * self.scale, target * self.scale)

    def raw_output(self, observation: Tree, c: Tensor | None) -> Tensor:
        """Return the output of members, in numbers of `value_head`: [M, B], or [M, B, K] of each choice."""
        return self._raw_output(observation, c)

    def error(self, elements: Tensor) -> Tensor:
        """Return the TD error [B] that gives this loss if all members have it.

        For distributions it is the distance of their means, averaged over members.
        """
        if self._newest is None or self._target is None:
            return ops.error_size(elements, huber=self.huber)
        if isinstance(self.value_head, Numbers):
            error = ops.error_size(elements / len(self._newest), huber=self.huber)
            return error if self.scale is None else error / self.scale
        target = self._target if self._target.dim() == elements.dim() else self._target.mean(-1)
        return (self.value_head.mean(self._newest) - target).abs().mean(0)

    @property
    def metrics(self) -> Mapping[str, Any]:
        if self._newest is None or self._target is None:
            return super().metrics
        summary = {**self.value_head.means(self.value_head.mean(self._newest)), **self.value_head.metrics(self._target)}
        return {**super().metrics, **summary}


class TargetScale(Callback):
    """Divide values and targets by the running deviation of targets, in a loss of critics.

    So the size of updates does not depend on that of rewards, and a Huber loss's threshold is in deviations.
    Values stay in the units of rewards.

    Args:
        loss: of the critics.
        speed: of the running statistics: of T updates the one at time t weighs as (t / T) ** (speed - 1).
        data_group: of the critics.

    Raises:
        ConfigError: the loss is not one of critics, or classifies, or has several rewards; or the speed is not above 0.
    """

    data_group: str | None = "default"

    def __init__(self, loss: CriticLoss, *, speed: float = 8.0, data_group: str = "default") -> None:
        if not isinstance(loss, CriticLoss):
            raise ConfigError(f"target_scale: wanted the loss of critics, got a {type(loss).__name__}")
        if isinstance(loss.value_head, Bins):
            raise ConfigError("target_scale: bins are learned by classification, which has no scale; remove one")
        if isinstance(loss.value_head, Rewards):
            raise ConfigError(
                "target_scale: critics of several rewards (+with=reward_critics) have no common deviation"
            )
        if not speed > 0.0:
            raise ConfigError(f"target_scale.speed: wanted a number above 0, got {speed}")
        self.loss = loss
        self.statistics = Statistics((), mode="adaptive", speed=speed, rate=1.0, window=1)
        self.data_group = data_group
        self._before: Mapping[str, Any] = {}  # metrics of the newest update before a resume

    def begin_batch(self, q_target: Tensor, valid: Tensor | None = None) -> None:
        self.statistics.to(q_target.device)
        self.statistics.update(q_target if valid is None else q_target[valid])
        self.loss.scale = self.statistics.scale

    @property
    def metrics(self) -> Mapping[str, Any]:
        if not self.statistics.updates:
            return self._before
        return {"target/mean": self.statistics.shift, "target/deviation": 1.0 / self.statistics.scale}

    def state_dict(self) -> dict[str, Any]:
        return {"statistics": self.statistics.state_dict(), "metrics": plain(self.metrics)}

    def load_numbers(self, state: dict[str, Any]) -> None:
        self.statistics.load_state_dict(state["statistics"])
        self._before = state["metrics"]


class PriorityFeedback(Callback):
    """Give a table the absolute TD error of every element of its batch, after each update.

    These are the priorities of proportional replay (Schaul et al., arXiv 1511.05952). They are computed from the
    elements' losses before weights and means.

    Args:
        table: where batches of the data group come from.
        loss: name of a loss callback; None = the first loss of the data group.
        data_group: of the batches.
    """

    data_group: str | None = "default"

    def __init__(self, table: Table | Mix, *, loss: str | None = None, data_group: str = "default") -> None:
        self.table = table
        self.loss = loss
        self.data_group = data_group
        self._source: LossCallback | None = None
        self._priority: Tensor | None = None
        self._before: Mapping[str, Any] = {}  # metrics of the newest update before a resume

    def begin_training(self, callbacks: Mapping[str, Callback]) -> None:
        losses = {
            name: callback
            for name, callback in callbacks.items()
            if isinstance(callback, LossCallback) and callback.data_group == self.data_group
        }
        chosen = next(iter(losses), None) if self.loss is None else self.loss
        if chosen is None or chosen not in losses:
            near = did_you_mean(self.loss, losses) if self.loss is not None else ""
            raise WiringError(
                f"callbacks.{self.name}.loss: wanted a loss of data group '{self.data_group}', given {self.loss}; "
                f"there is {', '.join(losses) or 'none'}{near}"
            )
        self._source = losses[chosen]
        self._source.watched = True

    def end_batch(self) -> None:
        source = self._source
        if source is None or source.elements is None:  # the loss was not due in this update
            return
        elements, source.elements = source.elements, None
        if elements.ndim == 0:
            raise RlrunError(
                f"callbacks.{self.name}: the loss of callbacks.{source.name} is one number a batch; "
                "priorities want one for each element"
            )
        self._priority = source.error(elements)
        self.table.feedback(self._priority)

    @property
    def metrics(self) -> Mapping[str, Any]:
        return self._before if self._priority is None else {"priority/mean": self._priority.mean()}

    def state_dict(self) -> dict[str, Any]:
        return {"metrics": plain(self.metrics)}

    def load_numbers(self, state: dict[str, Any]) -> None:
        self._before = state["metrics"]

    def note(self, path_of: Callable[[object], str]) -> str:
        return f"errors of {self.loss or 'the first loss'} -> {path_of(self.table)}"

"""The loss of critics, the scale of its targets, and priorities from its errors."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from rlrun import ops
from rlrun.callbacks.losses.joint import with_terms
from rlrun.callbacks.losses.loss import LossCallback, LossResult, Optimizer, require_distance
from rlrun.core.errors import ConfigError, RlrunError, WiringError, did_you_mean
from rlrun.core.typing import Tree
from rlrun.memory import Mix, Sample, Table
from rlrun.nn import Bins, Critics, ImplicitCritics, Numbers, Rewards, value_head_of
from rlrun.nn.normalizer import Statistics
from rlrun.nn.value_heads import RewardQuantiles
from rlrun.training.callback import Callback
from rlrun.training.plan import DataGroup


class CriticLoss(LossCallback):
    """The distance between each member's values and their common target, summed over members.

    Args:
        network: the critics.
        huber: from this distance on the loss grows linearly; None = squared everywhere, or linear for quantiles.
        distance: function of values and targets in its place, such as `torch.nn.SmoothL1Loss(reduction="none")`.

    Raises:
        ConfigError: the function does not return a distance for each entry, or the value head learns by classification.
    """

    def __init__(
        self,
        network: Critics | ImplicitCritics,
        optimizer: Optimizer | None,
        *,
        huber: float | None = None,
        distance: ops.Distance | None = None,
        **options: Any,
    ) -> None:
        super().__init__(network, optimizer, **options)
        self.critics = network
        self.codec = network.codec
        self._raw_output, self.value_head = value_head_of(network)
        require_distance(distance, huber)
        if distance is not None and isinstance(self.value_head, Bins):
            raise ConfigError("distance: bins are learned by classification, without a distance; remove one")
        self.huber, self.distance = huber, distance

    @property
    def measure(self) -> dict[str, Any]:
        """The distance of values and targets, as arguments of `rlrun.ops.distance`."""
        return {"huber": self.huber, "by": self.distance}

    def loss(self, observation: Tree, action: Tree, q_target: Tensor, target_scale: Tensor | None = None) -> LossResult:
        c, k = self.codec.split(action)
        output = self.raw_output(observation, c)
        if k is not None:
            output = self.value_head.select(output, k, self.codec)  # without the axis of choices
        elements = self.value_head.distance(*scaled(output, q_target, target_scale), **self.measure).sum(0)
        means = self.value_head.means(self.value_head.mean(output.detach()))
        metrics = {**means, **self.value_head.metrics(q_target)}
        outputs = self.errors(elements, output, q_target, target_scale) if self.watched else {}
        return elements, outputs, metrics

    def raw_output(self, observation: Tree, c: Tensor | None) -> Tensor:
        """Return the members' raw outputs, which `value_head` decodes: [M, B], or [M, B, K] of each choice."""
        return self._raw_output(observation, c)

    @torch.no_grad()
    def errors(
        self, elements: Tensor, output: Tensor, q_target: Tensor, target_scale: Tensor | None
    ) -> dict[str, Tensor]:
        """Return `td_error` [B]: the absolute error which, if every member had it, would give this loss.

        For distributions and a custom distance it is the error of their means, averaged over members.
        """
        plain = isinstance(self.value_head, Numbers) and not isinstance(self.value_head, RewardQuantiles)
        if plain and self.distance is None:
            error = ops.error_size(elements.detach() / len(output), huber=self.huber)
            return {"td_error": error if target_scale is None else error / target_scale}
        mean = self.value_head.mean(output)  # [M, B], or [M, R, B] of several rewards
        target = q_target if q_target.dim() == mean.dim() - 1 else q_target.mean(-1)  # the mean of a distribution
        if mean.dim() > elements.dim() + 1:
            return {"td_error": (mean - target.movedim(-1, 0)).abs().mean((0, 1))}
        return {"td_error": (mean - target).abs().mean(0)}

    def error(self, elements: Tensor, outputs: Mapping[str, Any]) -> Tensor:
        if "td_error" in outputs:
            error: Tensor = outputs["td_error"]
            return error
        return ops.error_size(elements, huber=self.huber)


def scaled(output: Tensor, q_target: Tensor, target_scale: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return outputs and targets in units of the targets' deviation, if a `TargetScale` provides the factor."""
    return (output, q_target) if target_scale is None else (output * target_scale, q_target * target_scale)


class TargetScale(Callback):
    """Divide values and targets by the running deviation of targets, in a loss of critics.

    The size of updates is then independent of that of rewards, and a Huber loss's threshold is in deviations.
    Values stay in the units of rewards.

    Args:
        loss: of the critics.
        speed: of the running statistics: after T updates, update t has the weight (t / T) ** (speed - 1).
        data_group: of the critics.

    Raises:
        ConfigError: the loss is not one of critics, or classifies, or has several rewards; or the speed is not above 0.
    """

    data_group: str | None = "default"
    provides = ("target_scale",)
    inherited = ("statistics",)
    only_provides = True

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

    def require_peers(self, callbacks: Mapping[str, Callback]) -> None:
        for callback in callbacks.values():
            if self.loss in with_terms(callback) or callback.data_group != self.data_group:
                continue
            hook = callback.hook("backward")
            if hook is not None and "target_scale" in hook.arguments:
                raise WiringError(
                    f"callbacks.{self.name}: callbacks.{callback.name} has targets of its own; remove one"
                )

    def begin_batch(self, q_target: Tensor, valid: Tensor | None = None) -> dict[str, Tensor]:
        self.statistics.to(q_target.device)
        self.statistics.update(q_target if valid is None else q_target[valid])
        scale = self.statistics.scale.clone()
        self.store.put({"target/mean": self.statistics.shift.clone(), "target/deviation": 1.0 / scale})
        return {"target_scale": scale}

    def state_dict(self) -> dict[str, Any]:
        return {"statistics": self.statistics.state_dict(), **super().state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.statistics.load_state_dict(state["statistics"])
        super().load_state_dict(state)


class PriorityFeedback(Callback):
    """Give a table the absolute TD error of every element of its batch, after each update.

    These are the priorities of proportional replay (Schaul et al., arXiv 1511.05952). They are computed from the
    elements' losses before weights and means. They go to the rows of this data group's batch, even if other data groups
    sample from the table.

    Args:
        table: the source of the data group's batches.
        loss: name of a loss callback; None = the first loss of the data group.
        data_group: of the batches.
    """

    data_group: str | None = "default"

    def __init__(self, table: Table | Mix, *, loss: str | None = None, data_group: str = "default") -> None:
        self.table = table
        self.loss = loss
        self.data_group = data_group
        self._source: LossCallback | None = None
        self._tables = tuple(getattr(table, "tables", (table,)))

    def require_peers(self, callbacks: Mapping[str, Callback]) -> None:
        chosen = self._choose(callbacks)[1]
        for callback in callbacks.values():
            if callback is self or not isinstance(callback, PriorityFeedback) or callback.data_group != self.data_group:
                continue
            if chosen is not None and callback._choose(callbacks)[1] == chosen:
                gives = f"callbacks.{callback.name} gives the errors of callbacks.{chosen} as priorities, too"
                raise WiringError(f"callbacks.{self.name}: {gives}; remove one of them")

    def _choose(self, callbacks: Mapping[str, Callback]) -> tuple[dict[str, LossCallback], str | None]:
        """Return the losses of the data group, and the name of the chosen one."""
        losses = {
            name: callback
            for name, callback in callbacks.items()
            if isinstance(callback, LossCallback) and callback.data_group == self.data_group
        }
        return losses, next(iter(losses), None) if self.loss is None else self.loss

    def begin_training(self, callbacks: Mapping[str, Callback]) -> None:
        losses, chosen = self._choose(callbacks)
        if chosen is None or chosen not in losses:
            near = did_you_mean(self.loss, losses) if self.loss is not None else ""
            raise WiringError(
                f"callbacks.{self.name}.loss: wanted a loss of data group '{self.data_group}', given {self.loss}; "
                f"there is {', '.join(losses) or 'none'}{near}"
            )
        self._source = losses[chosen]
        self._source.watched = True

    def end_batch(self, batches: Mapping[str, DataGroup]) -> None:
        source = self._source
        if source is None or source.elements is None:  # the loss was not due in this update
            return
        elements, source.elements = source.elements, None
        if elements.ndim == 0:
            raise RlrunError(
                f"callbacks.{self.name}: the loss of callbacks.{source.name} is one number a batch; "
                "priorities need one for each element"
            )
        sample = batches[self.data_group or ""].sample
        if not isinstance(sample, Sample) or any(table not in self._tables for table, _ in sample.parts):
            raise RlrunError(
                f"callbacks.{self.name}.table: batches of data group '{self.data_group}' are not sampled from this "
                "table; wanted the table of its loader, and a loader that samples"
            )
        sample.feedback(elements)
        group = "" if self.data_group == "default" else f"_{self.data_group}"
        self.store.put({f"priority/mean{group}": elements})

    def note(self, path_of: Callable[[object], str]) -> str:
        return f"errors of {self.loss or 'the first loss'} -> {path_of(self.table)}"

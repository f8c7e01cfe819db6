"""What was surprising: the errors of an update, fed back to the memory that its batch came from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from torch import Tensor

from rlrun.callback import Callback
from rlrun.callbacks.loss import LossCallback, plain
from rlrun.errors import RlrunError, WiringError, did_you_mean


class Feedback(Protocol):
    """What takes priorities: a table, or several that are sampled as one."""

    def feedback(self, priority: Tensor) -> None: ...


class PriorityFeedback(Callback):
    """After each update, tell a table the size of every element's error in the batch that it gave.

    The size of a TD error is what Schaul et al. (arXiv 1511.05952) call the priority of proportional replay. It is
    worked out from the elements' losses, which are squares or Huber's, before weights and averages.

    Args:
        table: where batches of the data group come from.
        loss: name of the callback whose losses count; None = the first loss of the data group.
    """

    data_group: str | None = "default"

    def __init__(self, table: Feedback, *, loss: str | None = None, data_group: str = "default") -> None:
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
        if source is None or source.elements is None:  # that loss had no turn in this update
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

"""Targets in units of their own deviation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from rlrun.callback import Callback
from rlrun.callbacks.critic import CriticLoss
from rlrun.callbacks.loss import plain
from rlrun.errors import ConfigError
from rlrun.nn import Bins, Rewards
from rlrun.nn.normaliser import Statistics


class TargetScale(Callback):
    """Have a critics' loss see values and targets divided by the running deviation of targets.

    The step that a learning rate makes then does not depend on the size of rewards, and a Huber loss turns at so many
    deviations. Values themselves stay in the units of rewards.

    Args:
        loss: of the critics.
        speed: of the running statistics: of T updates the one at time t weighs as (t / T) ** (speed - 1).

    Raises:
        ConfigError: that loss is none of critics, or compares no numbers, or those of several rewards, or the speed is
            not above 0.
    """

    data_group: str | None = "default"

    def __init__(self, loss: CriticLoss, *, speed: float = 8.0, data_group: str = "default") -> None:
        if not isinstance(loss, CriticLoss):
            raise ConfigError(f"target_scale: wanted the loss of critics, got a {type(loss).__name__}")
        if isinstance(loss.tells, Bins):
            raise ConfigError("target_scale: bins are learned by classification, which has no scale; leave one away")
        if isinstance(loss.tells, Rewards):
            raise ConfigError(
                "target_scale: critics of several rewards (+with=reward_critics) have no common deviation"
            )
        if not speed > 0.0:
            raise ConfigError(f"target_scale.speed: wanted a number above 0, got {speed}")
        self.loss = loss
        self.statistics = Statistics((), mode="adaptive", speed=speed, rate=1.0, window=1)
        self.data_group = data_group
        self._before: Mapping[str, Any] = {}  # metrics of the newest update before a resume

    def begin_batch(self, q_target: Tensor) -> None:
        self.statistics.to(q_target.device)
        self.statistics.update(q_target)
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

"""Parts that a measured run takes in by its config: `+callbacks.probe._target_=benchmarks.probe.Probe`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
from torch import Tensor

from benchmarks.clock import Clock
from rlrun.callbacks.losses.loss import LossCallback
from rlrun.training.callback import Callback, Stop


class Probe(Callback):
    """Look at the clocks at two environment steps, and end the run at the second."""

    cycle = 1

    def __init__(self, *, first: int, last: int) -> None:
        self.clock = Clock(first=first, last=last)

    def begin_training(self, callbacks: Mapping[str, Callback]) -> None:
        losses = [callback for callback in callbacks.values() if isinstance(callback, LossCallback)]
        self.clock.watch(loss.optimizer for loss in losses if loss.optimizer is not None)

    def end_cycle(self, step: int) -> None:
        if step >= self.clock.due and self.clock.note(step):
            raise Stop("measured")


class LastBatch(Callback):
    """Keep the rewards of the newest training batch."""

    data_group = "default"

    def __init__(self) -> None:
        self.reward: Tensor | None = None

    def end_batch(self, reward: Tensor) -> None:
        self.reward = reward


class FirstStep(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Write the processor time of this process and its children to a file at the first step, and end the run."""

    def __init__(self, env: gymnasium.Env[Any, Any], *, path: str) -> None:
        super().__init__(env)
        self.path = Path(path)

    def step(self, action: Any) -> Any:
        used = os.times()
        self.path.write_text(str(used.user + used.system + used.children_user + used.children_system))
        raise Stop("measured")

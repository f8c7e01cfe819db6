"""What the trainer itself costs an update: nine callbacks whose hooks are empty."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import repeat
from typing import Any

from rlrun.training.callback import Callback
from rlrun.training.trainer import Trainer

CALLBACKS = 9
BAR = 10.0  # microseconds
NAMES = ("observation", "action", "reward", "next_observation", "terminated")


class Empty(Callback):
    """Asks for data at each batch hook and does nothing with it."""

    data_group = "default"

    def begin_batch(self, next_observation: Any, reward: Any) -> None: ...

    def backward(self, observation: Any, action: Any) -> None: ...

    def end_batch(self) -> None: ...


class Batches:
    """The same batch, so many times."""

    def __init__(self, count: int) -> None:
        self.count = count

    def names(self) -> dict[str, tuple[str, ...]]:
        return {"default": NAMES}

    def __iter__(self) -> Iterator[dict[str, dict[str, Any]]]:
        return repeat({"default": dict.fromkeys(NAMES)}, self.count)


def microseconds(*, updates: int = 5_000) -> float:
    """Return the processor time of one update."""
    trainer = Trainer({f"empty{number}": Empty() for number in range(CALLBACKS)}, Batches(updates))
    start = time.process_time()
    trainer.train()
    return (time.process_time() - start) / updates * 1e6


def measure(*, repeats: int = 20) -> dict[str, Any]:
    """Return the least of several: whatever disturbs a measurement makes it longer."""
    times = [microseconds() for _ in range(repeats)]
    least = min(times)
    return {"callbacks": CALLBACKS, "microseconds": least, "all": times, "bar": BAR, "passed": least < BAR}

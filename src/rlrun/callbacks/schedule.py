"""Schedules of numbers, and the times of periodic work."""

from collections.abc import Callable, Mapping
from typing import Any

from rlrun.core.errors import ConfigError
from rlrun.core.schedules import Schedule as Function
from rlrun.core.schedules import as_schedule
from rlrun.training.callback import Callback

NEVER = 2**63  # beyond every counter


class Schedule(Callback):
    """Provide a number to every hook that asks for it by name.

    Args:
        provides: the name.
        value: a function of the environment step (of the update, where there is no collector), or a number.
        positive: refuse values that are not above 0.

    Raises:
        ConfigError: a value has to be positive, and is not.
    """

    only_provides = True

    def __init__(self, provides: str, value: Function | float, *, positive: bool = False) -> None:
        self.provides, self.positive = (provides,), positive
        self.value = as_schedule(value)
        self._last = self._at(0)

    def _at(self, step: int) -> float:
        value = float(self.value(step))
        if self.positive and not value > 0.0:
            raise ConfigError(f"{self.provides[0]}: wanted a number above 0, got {value:g} at step {step:,}")
        return value

    def begin_training(self) -> dict[str, float]:
        return {self.provides[0]: self._last}

    def begin_batch(self, update: int, step: int | None = None) -> dict[str, float]:
        self._last = self._at(update if step is None else step)
        return {self.provides[0]: self._last}

    @property
    def metrics(self) -> Mapping[str, Any]:
        return {f"schedule/{self.provides[0]}": self._last}

    def state_dict(self) -> dict[str, Any]:
        return {"newest": self._last}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._last = state["newest"]

    def note(self, path_of: Callable[[object], str]) -> str:
        return f"follows {type(self.value).__name__.lower()}"


def due_offline(update: int, every: int | None, offline: int) -> bool:
    """Return True if periodic work is due after this update, one of those before the first environment step.

    every: updates between two times; it is due after the last one, too.
    offline: number of updates before the first environment step.
    """
    return bool(every) and update <= offline and (update % (every or 1) == 0 or update == offline)


def following(now: int, every: int | None) -> int:
    """Return the next multiple of `every` after `now`, so that a resumed run keeps the interval; None or 0 = never."""
    return (now // every + 1) * every if every else NEVER

"""Where a new run begins: its counters, its budget, and what its first checkpoint is called."""

from __future__ import annotations

from collections.abc import Mapping

from rlrun.callbacks import Checkpointer
from rlrun.collect import ByIdCollector, Collector
from rlrun.config import Composed
from rlrun.errors import ConfigError
from rlrun.trainer import Trainer
from rlrun.typing import Stateful


def position(parts: Mapping[str, Stateful], trainer: Trainer) -> tuple[int, int]:
    """Return the environment step (the update, without a collector) and the update at which a run begins."""
    update = int(trainer.state["update"])
    collector = next((part for part in parts.values() if isinstance(part, Collector | ByIdCollector)), None)
    return (update if collector is None else collector.steps), update


def require_budget(composed: Composed, axis: int, trainer: Trainer) -> None:
    """Refuse a run that would end where it begins.

    Raises:
        ConfigError: the parent's counters have reached the budget.
    """
    reached = {"env_steps": axis, "updates": int(trainer.state["update"])}
    for name, count in reached.items():
        limit = composed.config.stop[name]
        if limit is not None and count >= limit > 0:
            raise ConfigError(
                f"stop.{name}={limit}: the parent has made {count} of them, and they count; "
                f"give stop.{name} as the total, or count from 0 by init.numbers=skip"
            )


def settle_keepers(parts: Mapping[str, Stateful], place: tuple[int, int]) -> None:
    """Tell checkpointers of the first checkpoint."""
    for part in parts.values():
        if isinstance(part, Checkpointer):
            part.load_state_dict(part.state_dict() | dict(zip(("axis", "update"), place, strict=True)))

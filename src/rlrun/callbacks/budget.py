"""The end of training: by a budget or by a signal."""

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from rlrun.callbacks.diagnostics.validation import Validation
from rlrun.callbacks.evaluator import Evaluator
from rlrun.core import distributed, processes
from rlrun.core.errors import ConfigError
from rlrun.core.progress import NO_LIMIT, Progress
from rlrun.training.callback import Callback, Stop


class Interrupted(Stop):
    """A signal stopped the run; it can be resumed."""


class Budget(Callback):
    """End training at the first update at or after whichever limit comes first.

    Args:
        env_steps: environment steps, all envs together.
        updates: gradient updates; with several data groups those of the group `default`, if there is one.
        seconds: of training, those before a resume included.
        mean_return: of an evaluation.
        evaluator: makes these evaluations.
        validation: objective of a validation: its minimum, or its maximum if the direction is `minimize`.
        validator: makes these validations.
        progress: of the same limits; hooks that ask for `progress` get the share of the budget that is used, this
            update and the steps before it included.

    Raises:
        ConfigError: the run does not measure a quantity that has a limit.
    """

    cycle = 1
    ends = True
    on_request = True

    def __init__(
        self,
        *,
        env_steps: int | None = None,
        updates: int | None = None,
        seconds: float | None = None,
        mean_return: float | None = None,
        evaluator: Evaluator | None = None,
        validation: float | None = None,
        validator: Validation | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.env_steps = float("inf") if env_steps is None else env_steps
        self.updates = float("inf") if updates is None else updates
        self.seconds = float("inf") if seconds is None else seconds
        self.mean_return = float("inf") if mean_return is None else mean_return
        if mean_return is not None and getattr(evaluator, "asynchronous", False):
            raise ConfigError(
                "stop.mean_return: evaluation.async=true has results at no fixed update; evaluation.async=false"
            )
        if validation is not None and validator is None:
            raise ConfigError(
                "stop.validation: no part of this run judges by held-out data; algorithm=classifier has one"
            )
        self.evaluator = evaluator
        self.validation = validation
        self.validator = validator
        self.progress = Progress(env_steps, updates) if progress is None else progress
        self.provides = ("progress",) if self.progress.limited else ()
        self.withheld = {} if self.progress.limited else {"progress": NO_LIMIT}
        self._group_updates: Mapping[str, int] = {}  # the trainer's own
        self._before = 0.0  # seconds of training before this process
        self._start = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds of training so far."""
        return self._before + time.monotonic() - self._start

    def begin_training(self, group_updates: Mapping[str, int] | None = None, update: int = 0, step: int = 0) -> None:
        self._group_updates = group_updates or {}
        self.progress.step, self.progress.update = step, self._counted(update)
        self._start = time.monotonic()
        if min(self.env_steps, self.updates) <= 0:
            raise Stop("there is nothing to do: the budget is 0")

    def _counted(self, update: int) -> int:
        return self._group_updates.get("default", update)

    def begin_batch(self, update: int, step: int = 0) -> dict[str, float]:
        return {"progress": self.progress.at(step, self._counted(update))}

    def left(self, step: int, wanted: int) -> int:
        """Return how many of the wanted environment steps the budget allows.

        Raises:
            Stop: the budget is used up.
        """
        if step >= self.env_steps:
            raise Stop(f"{step} of {self.env_steps} environment steps")
        if self.seconds < float("inf") and distributed.largest(self.elapsed >= self.seconds):
            raise Stop(f"{self.seconds} seconds")
        return int(min(wanted, self.env_steps - step))

    def end_cycle(self, update: int, step: int = 0) -> None:
        update = self.progress.update = self._counted(update)
        self.left(step, 1)
        if update >= self.updates:
            raise Stop(f"{update} of {self.updates} updates")
        if self.evaluator is not None and self.evaluator.mean_return >= self.mean_return:
            raise Stop(f"evaluation reached a mean return of {self.evaluator.mean_return:.1f}")
        if self.validator is not None and self.validation is not None and self.validator.reaches(self.validation):
            raise Stop(f"validation reached {self.validator.objective} {self.validator.value:.4g}")

    def note(self, path_of: Callable[[object], str]) -> str:
        limits = {
            "environment steps": self.env_steps,
            "updates": self.updates,
            "seconds": self.seconds,
            "mean return": self.mean_return,
            "validation": float("inf") if self.validation is None else self.validation,
        }
        texts = [f"{limit:,} {unit}" for unit, limit in limits.items() if limit != float("inf")]
        return "stops at " + ", ".join(texts) if texts else "no limit"

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self.elapsed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._before = state["seconds"]


class Interrupt(Callback):
    """Stop cleanly on SIGINT, SIGTERM, SIGUSR1 and SIGHUP; a second, other signal kills the process.

    A running update is finished; long work between updates (collection, evaluation) calls `check`. With several ranks a
    signal to one of them stops all, in `meet`.
    """

    cycle = 1
    ends = True

    def __init__(self) -> None:
        self.requested: str | None = None
        self._begun = False
        self._previous: dict[int, Any] = {}

    def restore_state(self) -> None:  # the first hook of all, as resets may take long
        if not processes.received:
            processes.restart()
        if threading.current_thread() is threading.main_thread():  # python allows handlers nowhere else
            self._previous = {number: signal.signal(number, self._handle_signal) for number in processes.stops()}
        if processes.received:
            self._receive(processes.received[-1])

    def begin_training(self) -> None:
        self._begun = True
        self.meet()

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        if not processes.repeated(number):
            self._receive(number)

    def _receive(self, number: int) -> None:
        if self.requested is not None:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.requested = signal.Signals(number).name
        if not self._begun and distributed.world_size() == 1:  # during preparation: there is nothing to save
            raise Interrupted(self.requested)

    def check(self) -> None:
        """Raise between two environment steps, where the state is consistent; not with several ranks.

        Raises:
            Interrupted: a signal came.
        """
        if distributed.world_size() == 1:
            self.abandon()

    def abandon(self) -> None:
        """Raise at a point where work can be abandoned.

        Raises:
            Interrupted: a signal came.
        """
        if self.requested is not None:
            raise Interrupted(self.requested)

    def meet(self) -> None:
        """Raise in all ranks at once; all of them call it.

        Raises:
            Interrupted: a signal came to one of them.
        """
        number = distributed.largest(0 if self.requested is None else signal.Signals[self.requested])
        if number:
            processes.repeated(number)  # torchrun may send it to the other ranks a moment later
            self.requested = signal.Signals(number).name
            self.abandon()

    def end_cycle(self) -> None:
        self.meet()

    def end_training(self, error: BaseException | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def note(self, path_of: Callable[[object], str]) -> str:
        return "stops on a signal"

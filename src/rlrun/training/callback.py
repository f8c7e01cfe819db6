"""A callback: the unit from which algorithms are put together."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

EVENTS = (
    "restore_state",
    "begin_training",
    "begin_cycle",
    "begin_batch",
    "backward",
    "end_batch",
    "end_cycle",
    "end_training",
)


class Hook(NamedTuple):
    """A hook that was overridden: what to call, the arguments it asks for, and the name to show."""

    method: Callable[..., Any]
    arguments: Mapping[str, inspect.Parameter]
    label: str


class Stop(Exception):
    """Raised by any hook to end training in order; the reason is its message."""


class SkipBatch(Exception):
    """Raised by any hook to leave the rest of this update out."""


class Callback:
    """Take part in training by overriding some of eight hooks.

    A hook asks for data by the names of its arguments: they are looked up in the callback's
    data group first, then in the run's state. An argument with a default is optional. A dict
    that a hook returns is added to the data group, or to the state where there is no group.
    """

    data_group: str | None = None  # whose names the batch hooks see first
    provides: tuple[str, ...] = ()  # names this callback adds to (or rewrites in) its group
    requested_names: frozenset[str] | None = None  # those of `provides` that are read; None = no plan yet
    cycle: int = 0  # begin_cycle and end_cycle every so many updates; 0 = never; who overrides them sets it
    leads: bool = False  # it looks on or writes, and changes nothing of training: of several learners the first has it
    only_provides: bool = False  # it only provides names: if no hook asks for them, that is a mistake
    by_turns: bool = False  # others train the same parameters, each in phases of its own
    ends: bool = False  # its end_cycle may end training, so it is called after all others
    name: str = ""  # its key in the trainer's callbacks, set when the plan is made
    position: int = 0  # its place among them
    inherited: tuple[str, ...] | None = None  # entries of its state that a run started from this one takes; None = all

    def restore_state(self, *names: Any) -> dict[str, Any] | None:
        """Load what was saved; other callbacks may not be ready yet."""

    def begin_training(self, *names: Any) -> dict[str, Any] | None:
        """Prepare; may add names to the run's state."""

    def begin_cycle(self, *names: Any) -> dict[str, Any] | None:
        """Start a cycle of `cycle` updates."""

    def begin_batch(self, *names: Any) -> dict[str, Any] | None:
        """Add targets or reshape data before any gradient is taken."""

    def backward(self, *names: Any) -> dict[str, Any] | None:
        """Take gradients and step optimizers."""

    def end_batch(self, *names: Any) -> dict[str, Any] | None:
        """Follow up on an update: target networks, priorities, periodic work."""

    def end_cycle(self, *names: Any) -> dict[str, Any] | None:
        """End a cycle of `cycle` updates."""

    def end_training(self, error: BaseException | None, *names: Any) -> dict[str, Any] | None:
        """Clean up, whatever happened; `error` is what ended training early."""

    @property
    def metrics(self) -> Mapping[str, Any]:
        """Numbers and scalar tensors to log, by full name; read at the logger's interval only."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return whatever influences training: tensors, numbers, nested dicts and lists of these."""
        return {}

    def load_state_dict(
        self, state: dict[str, Any], *, weights: bool = True, optimizer: bool = True, numbers: bool = True
    ) -> None:
        """Restore what `state_dict` returned.

        A resumed run restores all of it. A run that starts from another (`rlrun train --from`) passes a state of
        its own, in which the parts that it transfers come from the other run.

        Args:
            state: of this callback, or of its counterpart.
            weights: take what was learnt.
            optimizer: take what optimizers have gathered.
            numbers: take counters and schedules.
        """
        if numbers:
            self.load_numbers(state)

    def load_numbers(self, state: dict[str, Any]) -> None:
        """Take back counters and schedules."""

    def trained(self) -> Sequence[Any]:
        """Return the parameters that this callback's optimizer steps; others may step them by turns only."""
        return ()

    def due(self) -> bool:
        """Return True if the running update is one of those in which a loss learns, or a target network moves."""
        return True

    def passed(self) -> None:
        """Count an update of the data group, whether it was due or not."""

    def asked_for(self, name: str) -> bool:
        """Return True if a hook may ask for this name, which this callback provides."""
        return self.requested_names is None or name in self.requested_names

    def note(self, path_of: Callable[[object], str]) -> str:
        """Say in a few words what this callback does, for `explain`; `path_of` names a built part."""
        return ""

    def hook(self, event: str) -> Hook | None:
        """Return the hook for an event, or None if it was not overridden."""
        if getattr(type(self), event) is getattr(Callback, event):
            return None
        hook = self.hook_of(getattr(self, event), event)
        if event == "end_training":  # its first argument is the error, given by the trainer
            return hook._replace(arguments=dict(list(hook.arguments.items())[1:]))
        return hook

    @staticmethod
    def hook_of(method: Callable[..., Any], label: str) -> Hook:
        """Describe a bound method as a hook, by its signature."""
        return Hook(method, dict(inspect.signature(method).parameters), label)

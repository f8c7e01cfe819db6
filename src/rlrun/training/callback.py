"""The base class of callbacks, from which algorithms are built."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from rlrun.training.metrics import MetricStore, as_numbers

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


_signatures: WeakKeyDictionary[Any, Mapping[str, inspect.Parameter]] = WeakKeyDictionary()  # of bound methods


class Hook(NamedTuple):
    """A hook that a callback overrides.

    method: to call.
    arguments: parameters that it requests, by name.
    label: its name in messages; the update treats "loss", "target" and "move" (of a target network) specially.
    framework: optional names that rlrun reads for the hook, beside its arguments.
    """

    method: Callable[..., Any]
    arguments: Mapping[str, inspect.Parameter]
    label: str
    framework: tuple[str, ...] = ()


class Stop(Exception):
    """Raised by any hook to end training in order; the reason is its message."""


class SkipBatch(Exception):
    """Raised by any hook to skip the rest of this update."""


def trained_by(callback: Any) -> Sequence[Any]:
    """Return the parameters that the optimizer of a callback steps; empty for most callbacks."""
    parameters: Sequence[Any] = callback.trained() if hasattr(callback, "trained") else ()
    return parameters


def derive(kind: Any) -> str:
    """Return a hint which class to derive from, as the end of a message; empty for a subclass of `Callback`."""
    if not inspect.isclass(kind) or issubclass(kind, Callback):
        return ""
    bases = "rlrun.training.callback.Callback (docs/extending.md), or a loss from rlrun.callbacks.LossCallback"
    if issubclass(kind, dict):
        return "; it has no `_target_`: a callback that is null is off, and its keys alone do not make it"
    return f"; it is no callback: derive it from {bases} (docs/new_algorithm.md)"


class Callback:
    """The base of callbacks, which take part in training by overriding some of eight hooks.

    A hook requests data by the names of its arguments: they are looked up in the callback's data group first, then in
    the run's state. An argument with a default is optional. A dict that a hook returns is added to the data group, or
    to the state if there is no group.

    The plan reads further attributes of the few callbacks that have them:

    * `leads`: it observes or writes files, and does not affect training, so only the first rank has it
    * `ends`: its `end_cycle` may end training, so it is called after all others
    * `only_provides`: the plan is refused if no hook requests a name that it provides
    * `on_request`: its `begin_batch` is called only if a hook requests a name that it provides
    * `withheld`: names that it lacks in this run -> the reason, for messages
    * `requested_names`: is set to those of `provides` that hooks request
    * `trained()`: parameters that its optimizer steps; others step them only if both have `by_turns`
    * `every`, `due()`, `passed()`: of losses and target networks that skip some updates
    * `inherited`: entries of its state that a fork takes; others restart
    """

    data_group: str | None = None  # batch hooks look up names here first
    inputs: Mapping[str, str] = {}  # argument of its hooks -> name that is read for it; others read their own name
    provides: tuple[str, ...] = ()  # names this callback adds to (or rewrites in) its group
    cycle: int = 0  # updates from one begin_cycle or end_cycle to the next; 0 = never; set by classes with these hooks
    name: str = ""  # its key in the trainer's callbacks, set when the plan is made
    config_keys: Mapping[str, str] = {}  # argument of its constructor -> its config key, for errors of hooks

    def restore_state(self, *names: Any) -> dict[str, Any] | None:
        """Load saved data; other callbacks may not be ready yet."""

    def begin_training(self, *names: Any) -> dict[str, Any] | None:
        """Prepare; may add names to the run's state."""

    def begin_cycle(self, *names: Any) -> dict[str, Any] | None:
        """Start a cycle of `cycle` updates."""

    def begin_batch(self, *names: Any) -> dict[str, Any] | None:
        """Add targets or reshape data before any gradient is computed."""

    def backward(self, *names: Any) -> dict[str, Any] | None:
        """Compute gradients and step optimizers."""

    def end_batch(self, *names: Any) -> dict[str, Any] | None:
        """Work after an update: target networks, priorities, periodic tasks."""

    def end_cycle(self, *names: Any) -> dict[str, Any] | None:
        """End a cycle of `cycle` updates."""

    def end_training(self, error: BaseException | None, *names: Any) -> dict[str, Any] | None:
        """Clean up, also after errors; `error` is the one that ended training early, or None."""

    def require_peers(self, callbacks: Mapping[str, "Callback"]) -> None:
        """Raise an error if other callbacks do not fit this one; called when the plan is made."""

    @cached_property
    def store(self) -> MetricStore:
        """The newest metrics that hooks returned."""
        return MetricStore()

    @property
    def metrics(self) -> Mapping[str, Any]:
        """Numbers and scalar tensors to log, by full name; read at the logger's interval only."""
        return self.store.read()

    def state_dict(self) -> dict[str, Any]:
        """Return all state that influences training: tensors, numbers, nested dicts and lists of these.

        The base class returns the newest metrics, if hooks returned some.
        """
        return {"metrics": as_numbers(self.metrics)} if self.store.newest else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        self.store.load(state.get("metrics", {}))

    def note(self, path_of: Callable[[object], str]) -> str:
        """Return a short description of this callback for `explain`; `path_of` names a built part."""
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
        function = getattr(method, "__func__", None)
        if function is None:
            return Hook(method, dict(inspect.signature(method).parameters), label)
        if function not in _signatures:
            _signatures[function] = inspect.signature(method).parameters
        return Hook(method, dict(_signatures[function]), label)

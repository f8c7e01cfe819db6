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
    """A hook that was overridden.

    method: what is called.
    arguments: that it asks for, by name.
    label: its name to show; the update treats "loss", "target" and "move" (of a target network) as what they are.
    framework: optional names that are read for the hook, and are no arguments of it.
    """

    method: Callable[..., Any]
    arguments: Mapping[str, inspect.Parameter]
    label: str
    framework: tuple[str, ...] = ()


class Stop(Exception):
    """Raised by any hook to end training in order; the reason is its message."""


class SkipBatch(Exception):
    """Raised by any hook to skip the rest of this update."""


def derive(kind: Any) -> str:
    """Return from which class a callback's class has to derive, as the end of a message; nothing if it does."""
    if not inspect.isclass(kind) or issubclass(kind, Callback):
        return ""
    bases = "rlrun.training.callback.Callback (docs/extending.md), or a loss from rlrun.callbacks.LossCallback"
    if issubclass(kind, dict):
        return "; it has no `_target_`: a callback that is null is off, and its keys alone do not make it"
    return f"; it is no callback: derive it from {bases} (docs/new_algorithm.md)"


class Callback:
    """Take part in training by overriding some of eight hooks.

    A hook asks for data by the names of its arguments: they are looked up in the callback's
    data group first, then in the run's state. An argument with a default is optional. A dict
    that a hook returns is added to the data group, or to the state where there is no group.
    """

    data_group: str | None = None  # batch hooks look up names here first
    inputs: Mapping[str, str] = {}  # argument of its hooks -> name that is read for it; others read their own name
    provides: tuple[str, ...] = ()  # names this callback adds to (or rewrites in) its group
    requested_names: frozenset[str] | None = None  # those of `provides` that are read; None = no plan yet
    cycle: int = 0  # begin_cycle and end_cycle every so many updates; 0 = never; subclasses with these hooks set it
    leads: bool = False  # it observes or writes files, and does not affect training: only the first rank has it
    withheld: Mapping[str, str] = {}  # names that it lacks in this run -> why, for who asks for them
    on_request: bool = False  # its begin_batch is called only if a hook asks for what it provides
    only_provides: bool = False  # it only provides names: if no hook asks for them, that is a mistake
    by_turns: bool = False  # others train the same parameters, each in separate phases
    ends: bool = False  # its end_cycle may end training, so it is called after all others
    terms: Mapping[str, "Callback"] = {}  # losses that its `loss` adds up, by name
    patterns: Mapping[str, Any] = {}  # by place: a `Choice` of `rlrun.nn.parameter_groups`
    name: str = ""  # its key in the trainer's callbacks, set when the plan is made
    position: int = 0  # its index among them
    inherited: tuple[str, ...] = ()  # entries of its state that a fork takes: what it learned; counters restart

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
        """Refuse callbacks, by name, that do not fit this one, when the plan is made."""

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

        Here it is the newest metrics, if hooks returned some.
        """
        return {"metrics": as_numbers(self.metrics)} if self.store.newest else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        self.store.load(state.get("metrics", {}))

    def trained(self) -> Sequence[Any]:
        """Return the parameters that this callback's optimizer steps; others may step them only with `by_turns`."""
        return ()

    def due(self) -> bool:
        """Return True if a loss learns, or a target network moves, in the current update."""
        return True

    def passed(self) -> None:
        """Count an update of the data group, whether it was due or not."""

    def asked_for(self, name: str) -> bool:
        """Return True if a hook may ask for this name, which this callback provides."""
        return self.requested_names is None or name in self.requested_names

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

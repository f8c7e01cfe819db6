"""Look up the arguments of hooks: names are resolved once, and calls reuse them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from rlrun.core.errors import RlrunError
from rlrun.core.typing import Batch, Groups
from rlrun.training.callback import Callback

OUTSIDE = ("restore_state", "begin_training", "end_training")  # events without a batch


class State(dict[str, Any]):
    """The run's state, by name; a name that its callback has not returned is an error with the callback's name."""

    def __missing__(self, name: str) -> Any:
        owners = [owner for owner, callback in self.get("callbacks", {}).items() if name in callback.provides]
        if not owners:
            raise KeyError(name)
        place = ", ".join(f"callbacks.{owner}" for owner in owners)
        raise RlrunError(f"{place} provides '{name}' and has not returned it by update {self.get('update', 0)}")


Call = Callable[[Groups, State], None]


class DataGroup(dict[str, Any]):
    """One data group; a name it lacks is looked up in the run's state."""

    __slots__ = ("state",)

    def __init__(self, batch: Batch, state: State) -> None:
        super().__init__(batch)
        self.state = state

    def __missing__(self, name: str) -> Any:
        return self.state[name]


@dataclass
class HookCall:
    """One hook of one callback, with its names resolved."""

    callback: Callback
    event: str
    label: str
    required: tuple[str, ...]
    optional: tuple[str, ...]
    method: Callable[..., Any]

    @property
    def asks(self) -> tuple[str, ...]:
        return self.required + self.optional

    def call(self) -> Call:
        """Return the hook as a function of the data groups and the state; it is skipped if its group is missing."""
        method, optional = self.method, self.optional
        pick = _picker(self.required)
        key = self.callback.data_group or ""
        in_state = self.callback.data_group is None or self.event in OUTSIDE

        def call(groups: Groups, state: State) -> None:
            data = state if in_state else groups.get(key)
            if data is None:
                return
            if optional:
                result = method(*pick(data), **{name: data[name] for name in optional})
            else:
                result = method(*pick(data))
            if result:
                data.update(result)

        if in_state or self.event != "backward" or getattr(self.callback, "every", 1) == 1:
            return call
        callback = self.callback

        def when_due(groups: Groups, state: State) -> None:  # otherwise its arguments may be absent
            if callback.due():
                call(groups, state)
            elif key in groups:
                callback.passed()

        return when_due


def _picker(names: tuple[str, ...]) -> Callable[[Any], Iterable[Any]]:
    """Return a function that reads these names of a mapping, in order, as arguments."""
    if len(names) > 1:
        return itemgetter(*names)
    if names:
        (name,) = names
        return lambda data: (data[name],)
    return lambda data: ()

"""What a reset depends on: taken down just before it, put back to make it happen once more."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dis import get_instructions
from functools import cache
from inspect import isfunction
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from rlrun.core.errors import RlrunError
from rlrun.core.typing import Array
from rlrun.env.plain import SCALARS, LeftOut, Reader, Writer, same

# Constants that are costly to look at, the clock, and the next layer.
_NEVER = frozenset(("spec", "_cached_spec", "metadata", "_metadata", "_saved_kwargs", "_ezpickle_args"))
_NEVER |= {"_ezpickle_kwargs", "episode_start_time", "time_queue", "env"}
_NOTHING = object()

Layer = gymnasium.Env[Any, Any]


class Taken(NamedTuple):
    """A layer as it was: all attributes as they stand, and copies of those that can change in place."""

    attributes: dict[str, Any]
    copies: dict[str, Any]
    own: Any
    emulator: bytes | None

    def written(self) -> dict[str, Any]:
        plain = {name: value for name, value in self.attributes.items() if type(value) in SCALARS}
        attributes = {name: value for name, value in plain.items() if name not in _NEVER} | self.copies
        attributes = {name: value for name, value in attributes.items() if not name.startswith("__")}
        state = {"attributes": dict(sorted(attributes.items())), "own": self.own, "emulator": self.emulator}
        return {name: value for name, value in state.items() if value is not None}


class _Watched:
    """A layer that is taken down before each reset, in microseconds: what takes time is found out once."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        self._own = _has(layer, "state_dict", "load_state_dict")
        self._is_emulator = _is_emulator(layer)
        self._names: tuple[str, ...] | None = _stored_names(type(layer)) if _is_known(layer) else None  # type: ignore[arg-type]
        self._opened = False
        self._left_out: dict[str, Any] = {}  # too large, or not plain inside
        self._shape: tuple[list[str], list[type]] = ([], [])  # names and types of the attributes
        self._changing: list[str] = []  # names of those that no assignment need tell of

    def held(self) -> dict[str, Any]:
        """Return the attributes, themselves where it is no `known` layer."""
        if self._names is not None:
            return {
                name: value for name in self._names if (value := getattr(self.layer, name, _NOTHING)) is not _NOTHING
            }
        if not self._opened:
            self._opened = True
            _open(self.layer)
        attributes: dict[str, Any] = vars(self.layer)
        return attributes

    def take(self, writer: Writer) -> Taken:
        attributes = self.held()
        shape = list(attributes), list(map(type, attributes.values()))
        if shape != self._shape:
            self._shape = shape
            kinds = dict(zip(*shape, strict=True))
            self._changing = [name for name, kind in kinds.items() if kind not in SCALARS and name not in _NEVER]
        copies, left_out = {}, self._left_out
        for name in self._changing:
            value = attributes[name]
            if left_out.get(name, _NOTHING) is value:
                continue
            try:
                copies[name] = writer.attribute(value)
            except LeftOut:
                left_out[name] = value
        own = emulator = None
        if self._own:
            with suppress(Exception):  # training goes on without; a resume will tell
                own = writer.whole(self.layer.state_dict())
        if self._is_emulator:
            emulator = self.layer.clone_state(include_rng=True).serialize()
        return Taken(attributes.copy() if self._names is None else attributes, copies, own, emulator)

    def put_back(self, state: dict[str, Any], reader: Reader) -> None:
        layer, attributes = self.layer, self.held()
        before = attributes.copy()
        _put_back(attributes, state["attributes"], reader, type(layer))
        for name, value in attributes.items() if self._names is not None else ():
            if before.get(name, _NOTHING) is not value:
                setattr(layer, name, value)
        if "own" in state:
            layer.load_state_dict(reader.read(state["own"]))
        if "emulator" in state:
            kind = type(layer.clone_state())
            layer.restore_state(kind(state["emulator"]))

    def prune(self, names: set[str]) -> None:
        """Delete plain attributes of other names."""
        attributes = self.held()
        for name in [name for name, value in attributes.items() if name not in names and _plain(value)]:
            del attributes[name]


class OriginKeeper:
    """Knows how to take down one environment with its wrappers, and how to put it back.

    Of every layer: its random generators, its small plain attributes, what its own `state_dict` returns where
    it has `load_state_dict`, too, and an Atari emulator's memory. Attributes of other kinds (simulators, windows,
    functions) are left out, and left alone.
    """

    def __init__(self, env: Layer) -> None:
        self._layers = [_Watched(layer) for layer in _layers(env)]
        self._made: tuple[list[dict[str, Any]], list[set[str]]] | None = None

    def capture(self) -> list[Taken]:
        """Take down every layer, the outermost first; `written` gives it in plain values."""
        writer = Writer()
        return [layer.take(writer) for layer in self._layers]

    def restore(self, states: list[dict[str, Any]]) -> None:
        """Put back what was written; the next reset is the one that followed then."""
        reader = Reader()
        for layer, state in zip(self._layers, states, strict=True):
            layer.put_back(state, reader)

    def renew(self) -> None:
        """Put back what was there when this was first called."""
        if self._made is None:
            self._made = written(self.capture()), [set(watched.held()) for watched in self._layers]
            return
        states, names = self._made
        for watched, before in zip(self._layers, names, strict=True):
            watched.prune(before)
        self.restore(states)


def written(layers: list[Taken]) -> list[dict[str, Any]]:
    """Return captured layers in plain values."""
    return [layer.written() for layer in layers]


def _layers(env: Layer) -> Iterator[Layer]:
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env
    yield env


def _is_known(layer: Layer) -> bool:
    """Tell whether a layer is one of gymnasium's smallest, whose steps take as long as three look-ups of a log."""
    kind = type(layer)
    simple = kind.__module__.startswith(("gymnasium.envs.classic_control.", "gymnasium.envs.toy_text."))
    return simple or kind in (gymnasium.wrappers.TimeLimit, gymnasium.wrappers.OrderEnforcing)


@cache
def _stored_names(kind: Any) -> tuple[str, ...]:
    """Return the attributes that the methods of a class assign, found without a look at an object: see `_open`."""
    codes = [function.__code__ for base in kind.__mro__ for function in vars(base).values() if isfunction(function)]
    stored = [str(step.argval) for code in codes for step in get_instructions(code) if step.opname == "STORE_ATTR"]
    return tuple(name for name in dict.fromkeys(stored) if not isinstance(getattr(kind, name, None), property))


def _open(layer: Layer) -> None:
    """Let the attributes of a layer be read by `vars` without making its steps slower.

    Up to python 3.12 the first `vars` of an object moves its attributes to a kind of dict for which the interpreter
    has no quick access: CartPole's step would take a tenth longer ever after. For an ordinary dict it has.
    """
    attributes = vars(layer)
    if sys.version_info < (3, 13) and sys.getrefcount(attributes) <= 3:  # ours, the argument's and the object's own
        object.__setattr__(layer, "__dict__", {**attributes})


def _has(layer: Layer, *names: str) -> bool:
    return all(callable(getattr(type(layer), name, None)) for name in names)


def _is_emulator(layer: Layer) -> bool:
    return _has(layer, "clone_state", "restore_state") and type(getattr(layer, "ale", None)).__module__.startswith(
        "ale_py"
    )


def _plain(value: Any) -> bool:
    try:
        Writer().attribute(value)
    except LeftOut:
        return False
    return True


def _put_back(attrs: dict[str, Any], wanted: dict[str, Any], reader: Reader, kind: type) -> None:
    """Set the attributes that differ.

    What is equal stays the very object it is: others may refer to it. So does an array whose memory other
    attributes show: it is written in place. Any other attribute gets a value of its own, as the present one may be
    an entry of a table of tasks. An object of another kind that took the place of a plain value stays: a window.
    """
    arrays = {id(value): value for value in attrs.values() if isinstance(value, np.ndarray)}
    shown = {id(value.base) for value in arrays.values() if value.base is not None}
    for name in sorted(wanted, key=lambda name: id(attrs.get(name)) not in shown):  # so that views follow their base
        written, present = wanted[name], attrs.get(name, _NOTHING)
        if present is _NOTHING:
            _require_data(name, kind)
            attrs[name] = reader.read(written)
        elif not _settled(present, written):
            _require_data(name, kind)
            value = reader.read(written, present)
            if id(present) in shown and _alike(present, value):
                present[...] = value
            elif id(getattr(present, "base", None)) not in arrays or _base_name(attrs, present) in wanted:
                attrs[name] = value


def _require_data(name: str, kind: type) -> None:
    """Refuse to set an attribute that is none of an object's data: a checkpoint can be somebody else's.

    Raises:
        RlrunError: python gives it its meaning, or it would take the place of a method, or is a property.
    """
    member = getattr(kind, name, None)
    if name.startswith("__") or callable(member) or hasattr(type(member), "__set__"):
        raise RlrunError(f"'{name[:80]}' is no attribute of a {kind.__name__} that a checkpoint can hold")


def _settled(present: Any, written: Any) -> bool:
    """Tell whether an attribute is as it was written down, or is none that could be."""
    try:
        return same(Writer().attribute(present), written)
    except LeftOut:
        return True


def _base_name(attrs: dict[str, Any], view: Array) -> str:
    return next(name for name, value in attrs.items() if value is view.base)


def _alike(present: Array, value: Any) -> bool:
    return isinstance(value, np.ndarray) and bool(
        present.shape == value.shape and present.dtype == value.dtype and present.flags.writeable
    )


def whole_state(env: Layer) -> tuple[Callable[[], Any], Callable[[Any], Any]] | None:
    """Return `get_state()` and `set_state(state)` of an environment that offers these two; else None."""
    functions = []
    for name, arguments in (("get_state", ()), ("set_state", (None,))):
        function = getattr(env.unwrapped, name, None)
        try:
            inspect.signature(function).bind(*arguments)  # type: ignore[arg-type]
        except (TypeError, ValueError):  # none there; of MuJoCo's the second wants two arguments
            return None
        functions.append(function)
    return functions[0], functions[1]  # type: ignore[return-value]

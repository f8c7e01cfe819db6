"""Capture the state that a reset depends on, and restore it to repeat the reset."""

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import gymnasium
import numpy as np

from rlrun.core.errors import RlrunError
from rlrun.core.typing import Array
from rlrun.env.plain import SCALARS, LeftOut, Reader, Writer, equal

# Attributes that are not captured: constants that are slow to copy, the clock, and the next layer.
_NEVER = frozenset(("spec", "_cached_spec", "metadata", "_metadata", "_saved_kwargs", "_ezpickle_args"))
_NEVER |= {"_ezpickle_kwargs", "episode_start_time", "time_queue", "env"}
_MISSING = object()

Layer = gymnasium.Env[Any, Any]


class _LayerState:
    """Captures and restores the attributes of a wrapper, or of the environment itself."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        self._own = _has(layer, "state_dict", "load_state_dict")
        self._is_emulator = _is_emulator(layer)
        self._left_out: dict[str, Any] = {}  # values that cannot be captured: trying them again costs time
        _open(layer)

    def capture(self, writer: Writer) -> dict[str, Any]:
        attributes = {}
        for name, value in vars(self.layer).items():
            if name in _NEVER or name.startswith("__") or self._left_out.get(name, _MISSING) is value:
                continue
            try:
                attributes[name] = value if type(value) in SCALARS else writer.attribute(value)
            except LeftOut:
                self._left_out[name] = value
        state: dict[str, Any] = {"attributes": dict(sorted(attributes.items()))}
        if self._own:
            with suppress(Exception):  # training continues without it; a resume reports the difference
                state["own"] = writer.whole(self.layer.state_dict())
        if self._is_emulator:
            state["emulator"] = self.layer.clone_state(include_rng=True).serialize()
        return state

    def restore(self, state: dict[str, Any], reader: Reader) -> None:
        _restore(vars(self.layer), state["attributes"], reader, type(self.layer))
        if "own" in state:
            self.layer.load_state_dict(reader.read(state["own"]))
        if "emulator" in state:
            kind = type(self.layer.clone_state())
            self.layer.restore_state(kind(state["emulator"]))

    def prune(self, names: set[str]) -> None:
        """Delete plain attributes of other names."""
        attributes = vars(self.layer)
        for name in [name for name, value in attributes.items() if name not in names and _is_plain(value)]:
            del attributes[name]


class ResetState:
    """Captures the state of one environment with its wrappers, and restores it.

    It has the random generators and small plain attributes of every layer, its `state_dict` if it has also
    `load_state_dict`, and the memory of Atari emulators. Attributes of other kinds, such as simulators, windows and
    functions, are neither captured nor changed.
    """

    def __init__(self, env: Layer) -> None:
        self._layers = [_LayerState(layer) for layer in _layers(env)]
        self._first: tuple[list[dict[str, Any]], list[set[str]]] | None = None

    def capture(self) -> list[dict[str, Any]]:
        """Return the state of every layer in plain values, the outermost first."""
        writer = Writer()
        return [layer.capture(writer) for layer in self._layers]

    def restore(self, states: list[dict[str, Any]]) -> None:
        """Restore captured states; the next reset repeats the one after their capture."""
        reader = Reader()
        for layer, state in zip(self._layers, states, strict=True):
            layer.restore(state, reader)

    def renew(self) -> None:
        """Restore the state of the first capture."""
        if self._first is None:
            self._first = self.capture(), [set(vars(state.layer)) for state in self._layers]
            return
        states, names = self._first
        for layer, first_names in zip(self._layers, names, strict=True):
            layer.prune(first_names)
        self.restore(states)


def _layers(env: Layer) -> Iterator[Layer]:
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env
    yield env


def _open(layer: Layer) -> None:
    """Read a layer's attributes by `vars` without making its steps slower.

    Up to Python 3.12 the first `vars` of an object moves its attributes to a slower dict: CartPole's step takes a tenth
    longer. Replacing it by an ordinary dict restores the speed.
    """
    attributes = vars(layer)
    if sys.version_info < (3, 13) and sys.getrefcount(attributes) <= 3:  # this one, the argument and the object's own
        object.__setattr__(layer, "__dict__", {**attributes})


def _has(layer: Layer, *names: str) -> bool:
    return all(callable(getattr(type(layer), name, None)) for name in names)


def _is_emulator(layer: Layer) -> bool:
    return _has(layer, "clone_state", "restore_state") and type(getattr(layer, "ale", None)).__module__.startswith(
        "ale_py"
    )


def _is_plain(value: Any) -> bool:
    try:
        Writer().attribute(value)
    except LeftOut:
        return False
    return True


def _restore(attrs: dict[str, Any], wanted: dict[str, Any], reader: Reader, kind: type) -> None:
    """Set the attributes that differ.

    An equal value stays the same object, as others may refer to it. An array with views is written in place. Any other
    attribute gets a new object, as the current one may be an entry of a table of tasks. A value of another kind, such
    as a window, stays.
    """
    arrays = {id(value): value for value in attrs.values() if isinstance(value, np.ndarray)}
    viewed = {id(value.base) for value in arrays.values() if value.base is not None}
    for name in sorted(wanted, key=lambda name: id(attrs.get(name)) not in viewed):  # a view comes after its base
        written, present = wanted[name], attrs.get(name, _MISSING)
        if present is _MISSING:
            _require_data(name, kind)
            attrs[name] = reader.read(written)
        elif not _is_current(present, written):
            _require_data(name, kind)
            value = reader.read(written, present)
            if id(present) in viewed and _fits(present, value):
                present[...] = value
            elif id(getattr(present, "base", None)) not in arrays or _base_name(attrs, present) in wanted:
                attrs[name] = value


def _require_data(name: str, kind: type) -> None:
    """Refuse to set an attribute that is not plain data, as a checkpoint may be untrusted.

    Raises:
        RlrunError: the name is special in Python, or a method or property has it.
    """
    member = getattr(kind, name, None)
    if name.startswith("__") or callable(member) or hasattr(type(member), "__set__"):
        raise RlrunError(f"'{name[:80]}' is not an attribute of a {kind.__name__} that a checkpoint can hold")


def _is_current(present: Any, written: Any) -> bool:
    """Return True if a value equals the written one, or cannot be written at all."""
    try:
        return equal(Writer().attribute(present), written)
    except LeftOut:
        return True


def _base_name(attrs: dict[str, Any], view: Array) -> str:
    return next(name for name, value in attrs.items() if value is view.base)


def _fits(present: Array, value: Any) -> bool:
    return isinstance(value, np.ndarray) and bool(
        present.shape == value.shape and present.dtype == value.dtype and present.flags.writeable
    )


def whole_state(env: Layer) -> tuple[Callable[[], Any], Callable[[Any], Any]] | None:
    """Return the methods `get_state()` and `set_state(state)` of an environment; None if it lacks one."""
    functions = []
    for name, arguments in (("get_state", ()), ("set_state", (None,))):
        function = getattr(env.unwrapped, name, None)
        try:
            inspect.signature(function).bind(*arguments)  # type: ignore[arg-type]
        except (TypeError, ValueError):  # missing, or MuJoCo's `set_state`, which takes two arguments
            return None
        functions.append(function)
    return functions[0], functions[1]  # type: ignore[return-value]

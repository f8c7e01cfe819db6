"""Attributes of environments as plain values, which a checkpoint can hold.

Numbers, text, arrays, and nests of these stay as they are. Values of other known kinds become a dict that names the
kind: {"dict": …}, {"deque": …}, {"set": …}, {"generator": …}, {"space": …}, {"moments": …}.
"""

import random
from collections import deque
from typing import Any

import gymnasium
import numpy as np

from rlrun.core.errors import RlrunError
from rlrun.core.generators import checked
from rlrun.core.typing import Array
from rlrun.env.spaces import parts_of

LARGEST = 1 << 16  # bytes of an array: a reset depends on small ones; it draws screens and maps again
VISITS = 128  # parts of a nest: enough for a table of tasks; a transition table would cost more than its episode
SCALARS = frozenset((type(None), bool, int, float, str, bytes))
_GENERATORS = frozenset((np.random.Generator, np.random.RandomState, random.Random))
_MOMENTS = frozenset(("mean", "var", "count"))  # of gymnasium's RunningMeanStd and its likes
_BITS: dict[str, Any] = {
    "PCG64": np.random.PCG64,
    "PCG64DXSM": np.random.PCG64DXSM,
    "MT19937": np.random.MT19937,
    "Philox": np.random.Philox,
    "SFC64": np.random.SFC64,
}


class LeftOut(Exception):
    """A value is too large, or of a kind that has no plain form."""


class Writer:
    """Writes values; a generator that occurs twice keeps its number, so that a reader restores one object."""

    def __init__(self) -> None:
        self._generators: dict[int, int] = {}
        self._left = VISITS
        self._largest: float = LARGEST

    def attribute(self, value: Any) -> Any:
        """Return a copy in plain values.

        Raises:
            LeftOut: it is too large, or of another kind.
        """
        self._left = VISITS
        return self._write(value)

    def whole(self, value: Any) -> Any:
        """Return a copy in plain values, without a limit of size."""
        self._left, self._largest = 1 << 62, float("inf")
        try:
            return self._write(value)
        finally:
            self._largest = LARGEST

    def _write(self, value: Any) -> Any:
        kind = type(value)
        if kind in SCALARS or isinstance(value, np.generic):
            return value
        if kind is np.ndarray:
            return self._array(value)
        if kind is list or kind is tuple:
            return kind(self._items(value))
        if kind is dict:
            return self._pairs(value)
        if isinstance(value, gymnasium.Space):
            return self._space(value)
        if kind in _GENERATORS:
            return self._generator(value)
        if kind is deque:
            return {"deque": self._items(value), "maxlen": value.maxlen}
        if kind is set:
            return {"set": sorted(self._items(value), key=repr)}
        if kind.__module__ == "torch" and kind.__name__ == "Tensor":
            return self._tensor(value)
        return self._moments(value)

    def _spend(self, visits: int) -> None:
        self._left -= visits
        if self._left < 0:
            raise LeftOut

    def _moments(self, value: Any) -> dict[str, Any]:
        """Return running means, which are recognized by their attributes; refuse any other value."""
        if not all(hasattr(value, name) for name in _MOMENTS):  # reading its dict could make an object slower
            raise LeftOut
        attributes = getattr(value, "__dict__", {})
        if attributes.keys() != _MOMENTS:
            raise LeftOut
        return {"moments": {name: self._write(part) for name, part in attributes.items()}}

    def _array(self, value: Array) -> Array:
        base = value.base
        while base is not None and isinstance(base, np.ndarray):
            base = base.base
        # A simulator fills the views of its own memory.
        if base is not None or value.dtype.hasobject or value.nbytes > self._largest:
            raise LeftOut
        return value.copy()

    def _tensor(self, value: Any) -> Any:
        if value.device.type != "cpu" or value.numel() * value.element_size() > self._largest:
            raise LeftOut
        return value.detach().clone()

    def _items(self, value: Any) -> list[Any]:
        if SCALARS.issuperset(map(type, value)):
            self._spend(1 + (len(value) >> 4))
            return list(value)
        self._spend(1 + len(value))
        return [self._write(part) for part in value]

    def _pairs(self, value: dict[Any, Any]) -> dict[str, Any]:
        self._spend(1 + len(value))
        return {"dict": [[self._write(key), self._write(part)] for key, part in value.items()]}

    def _generator(self, value: Any) -> dict[str, Any]:
        number = self._generators.setdefault(id(value), len(self._generators))
        if isinstance(value, np.random.Generator):
            state = value.bit_generator.state
            if state["bit_generator"] not in _BITS:
                raise LeftOut
            return {"generator": number, "numpy": state}
        if isinstance(value, np.random.RandomState):
            return {"generator": number, "legacy": value.get_state(legacy=False)}
        version, numbers, gauss = value.getstate()
        return {"generator": number, "python": {"version": version, "words": np.array(numbers), "gauss": gauss}}

    def _space(self, value: gymnasium.Space[Any]) -> dict[str, Any]:
        """Return the existing generators of a space and of its parts."""
        generators = {} if value._np_random is None else {"": self._generator(value._np_random)}
        for name, part in parts_of(value).items():
            if inner := self._space(part)["space"]:
                generators[name] = {"space": inner}
        return {"space": generators}


class Reader:
    """Reads values that a `Writer` wrote; generators with the same number become one."""

    def __init__(self) -> None:
        self._generators: dict[int, Any] = {}

    def read(self, written: Any, present: Any = None) -> Any:
        """Return the value; a generator, a space or running means are set in place, in `present`."""
        if isinstance(written, list):
            return [self.read(part) for part in written]
        if isinstance(written, tuple):
            return tuple(self.read(part) for part in written)
        if not isinstance(written, dict):
            if type(written) in SCALARS:
                return written
            return written.clone() if hasattr(written, "clone") else written.copy()
        if "dict" in written:
            return {self.read(key): self.read(part) for key, part in written["dict"]}
        if "deque" in written:
            return deque(self.read(written["deque"]), written["maxlen"])
        if "set" in written:
            return set(self.read(written["set"]))
        if "generator" in written:
            return self._generator(written, present)
        if isinstance(present, gymnasium.Space):
            self._space(written["space"], present)
        elif present is not None:
            vars(present).update({name: self.read(part) for name, part in written["moments"].items()})
        return present

    def _generator(self, written: dict[str, Any], present: Any) -> Any:
        number = written["generator"]
        if number in self._generators:
            return self._generators[number]
        if any(present is known for known in self._generators.values()):
            present = None  # two generators that were the same object before the first reset
        self._generators[number] = generator = _set_generator(written, present)
        return generator

    def _space(self, written: dict[str, Any], present: gymnasium.Space[Any]) -> None:
        parts = parts_of(present)
        for name, state in written.items():
            if name:
                self._space(state["space"], parts[name])
            else:
                present._np_random = self._generator(state, present._np_random)


def _set_generator(written: dict[str, Any], present: Any) -> Any:
    require_sound(written)
    if "numpy" in written:
        state, bits = written["numpy"], getattr(present, "bit_generator", None)
        if bits is None or bits.state["bit_generator"] != state["bit_generator"]:
            present = np.random.Generator(_BITS[state["bit_generator"]]())
        present.bit_generator.state = state
    elif "legacy" in written:
        present = present if isinstance(present, np.random.RandomState) else np.random.RandomState()
        present.set_state(written["legacy"])
    else:
        state = written["python"]
        present = present if type(present) is random.Random else random.Random()
        present.setstate((state["version"], tuple(state["words"].tolist()), state["gauss"]))
    return present


def require_sound(written: Any) -> None:
    """Refuse states of generators that would make numpy read beyond its memory, and attributes special in Python.

    Raises:
        RlrunError: with the first of them.
    """
    if isinstance(written, list | tuple):
        for part in written:
            require_sound(part)
    elif isinstance(written, dict):
        if type(written.get("generator")) is int:
            for kind in ("numpy", "legacy"):
                if kind in written and checked(written[kind])["bit_generator"] not in _BITS:
                    raise RlrunError(f"there is no random generator {written[kind]['bit_generator'][:40]!a}")
        for name in written.get("attributes", ()):
            if name.startswith("__"):
                raise RlrunError(f"'{name[:80]}' is not an attribute that a checkpoint can hold")
        for part in written.values():
            require_sound(part)


def equal(first: Any, second: Any) -> bool:
    """Return True if two written values are equal bit for bit; values that are set in place never are."""
    if type(first) is not type(second):
        return False
    if isinstance(first, np.ndarray | np.generic):
        return bool(first.dtype == second.dtype and first.shape == second.shape and first.tobytes() == second.tobytes())
    if hasattr(first, "clone"):
        return bool(first.dtype == second.dtype and first.shape == second.shape and first.equal(second))
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(equal, first, second))
    if isinstance(first, dict):
        plain = not first.keys() & {"generator", "space", "moments"}
        return plain and first.keys() == second.keys() and all(equal(first[name], second[name]) for name in first)
    return repr(first) == repr(second)  # -0.0 differs from 0.0, and NaN equals NaN

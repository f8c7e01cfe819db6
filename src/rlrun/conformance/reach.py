"""Everything that can be reached from an object, by path, in a form that can be compared.

An object's attributes, entries and items are followed, what closures, partials, bound methods and running
generators hold as well. At the ends of the paths stand numbers, text, digests of arrays and tensors, and states of
random generators. A type that says nothing of its content is an error unless `OPAQUE` knows it.
"""

from __future__ import annotations

import functools
import hashlib
import io
import logging
import random
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

OPAQUE = (  # they hold nothing that training changes
    *(type, types.ModuleType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType),
    *(types.GetSetDescriptorType, types.MemberDescriptorType, types.CodeType, staticmethod, classmethod, property),
    *(np.dtype, np.ufunc, torch.dtype, torch.device, torch.layout, torch.memory_format),
    *(logging.Logger, weakref.ref, weakref.WeakKeyDictionary, weakref.WeakValueDictionary),
    *(type(threading.Lock()), type(threading.RLock()), threading.Thread, ThreadPoolExecutor, Future),
    *(io.IOBase, Path),  # where files lie and how they are open is another matter in each process
)
PLAIN = (type(None), bool, int, float, complex, str, bytes, np.generic, slice, range, type(...), type(NotImplemented))
View = Callable[[Any], Mapping[str, Any]]


class Reach:
    """Walks once; `leaves` is path -> content.

    Args:
        left_out: (class, attribute) that are not followed, with the reasons.
        skipped: tells which keys of mappings are not followed.
        views: class -> what is looked at beside the attributes.
        opaque: further types that are not looked into.
        unknown: gets what nothing is known of; None = that is an error.

    A class says itself of which attributes nothing has to be left: `momentary = ("_last",)`.
    """

    def __init__(
        self,
        *,
        left_out: Mapping[tuple[str, str], str] | None = None,
        skipped: Callable[[str], bool] = lambda key: False,
        views: Mapping[type, View] | None = None,
        opaque: tuple[type, ...] = (),
        unknown: list[str] | None = None,
    ) -> None:
        self.leaves: dict[str, Any] = {}
        self._left_out = left_out or {}
        self._skipped = skipped
        self._views = views or {}
        self._opaque = (*OPAQUE, *opaque)
        self._unknown = unknown
        self._met: dict[int, Any] = {}  # they stay alive, so that no number is used again

    def walk(self, value: Any, path: str) -> Reach:
        """Follow a value that stands at this path."""
        pending = [(value, path)]
        while pending:
            value, path = pending.pop()
            if isinstance(value, PLAIN):
                self.leaves[path] = _plain(value)
            elif isinstance(value, self._opaque):
                continue
            elif id(value) not in self._met:
                if not isinstance(value, tuple):  # python keeps one or several of those that are equal, as it likes
                    self._met[id(value)] = value
                leaf = _leaf(value)
                if leaf is not None:
                    self.leaves[path] = leaf
                parts = [*self._parts(value, path)]
                if not parts and leaf is None and not _is_empty(value):
                    self._miss(f"{path}: nothing is known of what a {type(value)} holds")
                pending.extend(reversed(parts))
        return self

    def _miss(self, message: str) -> None:
        if self._unknown is None:
            raise TypeError(message)
        self._unknown.append(message)

    def _parts(self, value: Any, path: str) -> Iterator[tuple[Any, str]]:
        for kind, look in self._views.items():
            if isinstance(value, kind):
                yield from ((part, f"{path}.{name}") for name, part in look(value).items())
        inner = _inside(value)
        if inner is not None:
            keyed = isinstance(value, Mapping | types.MappingProxyType)
            yield from ((part, f"{path}{name}") for name, part in inner if not (keyed and self._skipped(name[2:-2])))
        for name, part in _attributes(value):
            if not any(
                (kind.__name__, name) in self._left_out or name in vars(kind).get("momentary", ())
                for kind in type(value).__mro__
            ):
                yield part, f"{path}.{name}"


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Return the paths at which two walks differ, with what was found there."""
    return [
        f"{path}: {_shown(first, path)} -> {_shown(second, path)}"
        for path in sorted(first.keys() | second.keys())
        if path not in first or path not in second or first[path] != second[path]
    ]


def _shown(leaves: Mapping[str, Any], path: str) -> str:
    return str(leaves[path])[:80] if path in leaves else "missing"


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | bytes) else f"{type(value).__name__} {value!r}"  # two NaN are the same


def _leaf(value: Any) -> Any:
    """Return what stands for a value at the end of a path; None where there is only more to follow."""
    if isinstance(value, torch.Tensor):
        return _digest(
            value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy(), value.dtype, value.shape
        )
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return _digest(np.ascontiguousarray(value).reshape(-1).view(np.uint8), value.dtype, value.shape)
    if isinstance(value, torch.Generator):
        return _digest(value.get_state().numpy(), "generator", ())
    if isinstance(value, random.Random):
        return repr(value.getstate())
    return None


def _digest(raw: Any, dtype: Any, shape: Any) -> str:
    return f"{dtype} {list(shape)} {hashlib.sha256(raw.tobytes()).hexdigest()[:16]}"


def _inside(value: Any) -> Iterator[tuple[str, Any]] | None:
    """Return what a container, a callable or a generator holds, with the end of each path."""
    if isinstance(value, torch.optim.Optimizer):
        slots = [parameter for group in value.param_groups for parameter in group["params"]]
        return ((f".state[{number}]", value.state.get(slot, {})) for number, slot in enumerate(slots))
    if isinstance(value, Mapping | types.MappingProxyType):
        return ((f"[{key!r}]", item) for key, item in value.items() if not isinstance(key, torch.Tensor))
    if isinstance(value, list | tuple | deque):
        if hasattr(value, "_fields"):  # a named tuple; its names are attributes
            return iter(())
        return ((f"[{number}]", item) for number, item in enumerate(value))
    if isinstance(value, set | frozenset):
        return ((f"{{{number}}}", item) for number, item in enumerate(sorted(value, key=repr)))
    if isinstance(value, np.ndarray):
        return ((f"[{number}]", item) for number, item in enumerate(value.flat)) if value.dtype.hasobject else iter(())
    if isinstance(value, np.random.Generator):
        return iter([(".state", value.bit_generator.state)])
    if isinstance(value, np.random.RandomState):
        return iter([(".state", value.get_state(legacy=False))])
    if isinstance(value, np.random.BitGenerator | np.random.SeedSequence):
        return iter([(".state", value.state)])
    return _inside_callable(value)


def _inside_callable(value: Any) -> Iterator[tuple[str, Any]] | None:
    if isinstance(value, functools.partial):
        return iter([(".func", value.func), (".args", value.args), (".keywords", value.keywords)])
    if isinstance(value, types.MethodType | types.MethodWrapperType):
        return iter(
            [(".self", value.__self__), *([(".function", value.__func__)] if hasattr(value, "__func__") else [])]
        )
    if isinstance(value, types.FunctionType):
        cells = [(f".cell[{number}]", _content(cell)) for number, cell in enumerate(value.__closure__ or ())]
        return iter([*cells, (".defaults", value.__defaults__), (".keywords", value.__kwdefaults__)])
    if isinstance(value, types.GeneratorType):
        return iter([(".locals", dict(value.gi_frame.f_locals) if value.gi_frame is not None else "ended")])
    return None


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return "empty"


def _attributes(value: Any) -> list[tuple[str, Any]]:
    """Return the attributes that an object has of its own, in the order of their names."""
    if isinstance(value, torch.Tensor):
        return [("grad", value.grad)] if value.is_leaf and value.grad is not None else []
    if isinstance(value, types.FunctionType | types.MethodType | np.random.Generator | np.random.RandomState):
        return []
    attributes = dict(getattr(value, "__dict__", {})) | {
        name: getattr(value, name) for name in getattr(value, "_fields", ())
    }
    for kind in type(value).__mro__:
        names = kind.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            name = f"_{kind.__name__.lstrip('_')}{name}" if name.startswith("__") and not name.endswith("__") else name
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                attributes[name] = getattr(value, name)
    if isinstance(value, torch.optim.Optimizer):
        attributes.pop("state")
    return sorted(attributes.items())


def _is_empty(value: Any) -> bool:
    """Tell whether a value is of a kind that is known, and there is just nothing in it."""
    return _inside(value) is not None or hasattr(value, "__dict__") or bool(getattr(type(value), "__slots__", ()))

"""One word for the content of a state: equal for equal content, however it is kept."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from rlrun.errors import RlrunError
from rlrun.storage.rows import Column
from rlrun.storage.tensorfiles import bytes_of


def digest(state: Any) -> str:
    """Return a hash of all that a state holds, what depends on the clock left out.

    That is `seconds`, names that end in `_per_second`, and what stands under `time/`. Rows of a memory count as the
    tensors that they are, in main memory or on disk. The order of a mapping makes no difference.

    Raises:
        RlrunError: it holds something else than a checkpoint can.
    """
    return _Digest(state).hexdigest()


def is_clock(name: str) -> bool:
    """Tell whether a number of this name depends on the clock."""
    return name == "seconds" or name.endswith("_per_second") or name.startswith("time/")


class _Digest:
    """A hash that a state is poured into, every value after its kind and size."""

    def __init__(self, state: Any) -> None:
        self._hash = hashlib.sha256()
        self._take(state)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    def _put(self, kind: str, data: Any = b"") -> None:
        self._hash.update(f"{kind}:{len(data)}:".encode())
        self._hash.update(data)

    def _take(self, value: Any) -> None:
        if value is None or type(value) in (bool, int, str, float):
            self._put(type(value).__name__, repr(value).encode("utf-8", "surrogatepass"))
        elif isinstance(value, Tensor):
            self._take_tensor(value)
        elif isinstance(value, Column):
            self._put("tensor", f"{value.dtype} {tuple(value.shape)}".encode())
            for piece in value.pieces():
                self._hash.update(_bytes(piece))
        elif isinstance(value, np.ndarray | np.generic):
            kind = "array" if isinstance(value, np.ndarray) else "number"
            self._put(kind, f"{value.dtype.str} {value.shape}".encode())
            self._hash.update(_bytes(np.asarray(value)))
        elif isinstance(value, Mapping):
            self._take_mapping(value)
        elif isinstance(value, list | tuple):
            self._put("list" if isinstance(value, list) else "tuple", str(len(value)).encode())
            for held in value:
                self._take(held)
        elif isinstance(value, bytes):
            self._put("bytes", value)
        else:
            raise RlrunError(f"a {type(value).__module__}.{type(value).__qualname__} has no digest")

    def _take_tensor(self, value: Tensor) -> None:
        tensor = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
        self._put("tensor", f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        self._hash.update(bytes_of(tensor).data)

    def _take_mapping(self, value: Mapping[Any, Any]) -> None:
        kept = [(key, held) for key, held in value.items() if not (isinstance(key, str) and is_clock(key))]
        self._put("dict", str(len(kept)).encode())
        for key, held in sorted(kept, key=lambda pair: (type(pair[0]).__name__, repr(pair[0]))):
            self._take(key)
            self._take(held)


def _bytes(array: np.ndarray[Any, Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data

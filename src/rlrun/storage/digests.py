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
    hash_ = hashlib.sha256()
    _take(hash_, state)
    return hash_.hexdigest()


def is_clock(name: str) -> bool:
    """Tell whether a number of this name depends on the clock."""
    return name == "seconds" or name.endswith("_per_second") or name.startswith("time/")


def _take(hash_: Any, value: Any) -> None:
    """Add a value to a hash, and all that it holds: each after its kind and size."""
    if value is None or type(value) in (bool, int, str, float):
        _put(hash_, type(value).__name__, repr(value).encode("utf-8", "surrogatepass"))
    elif isinstance(value, Tensor):
        tensor = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
        _put(hash_, "tensor", f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        hash_.update(bytes_of(tensor).data)
    elif isinstance(value, Column):
        _put(hash_, "tensor", f"{value.dtype} {tuple(value.shape)}".encode())
        for piece in value.pieces():
            hash_.update(_bytes(piece))
    elif isinstance(value, np.ndarray | np.generic):
        kind = "array" if isinstance(value, np.ndarray) else "number"
        _put(hash_, kind, f"{value.dtype.str} {value.shape}".encode())
        hash_.update(_bytes(np.asarray(value)))
    elif isinstance(value, Mapping):
        entries = [(key, part) for key, part in value.items() if not (isinstance(key, str) and is_clock(key))]
        _put(hash_, "dict", str(len(entries)).encode())
        for key, part in sorted(entries, key=lambda pair: (type(pair[0]).__name__, repr(pair[0]))):
            _take(hash_, key)
            _take(hash_, part)
    elif isinstance(value, list | tuple):
        _put(hash_, "list" if isinstance(value, list) else "tuple", str(len(value)).encode())
        for part in value:
            _take(hash_, part)
    elif isinstance(value, bytes):
        _put(hash_, "bytes", value)
    else:
        raise RlrunError(f"a {type(value).__module__}.{type(value).__qualname__} has no digest")


def _put(hash_: Any, kind: str, data: bytes) -> None:
    hash_.update(f"{kind}:{len(data)}:".encode())
    hash_.update(data)


def _bytes(array: np.ndarray[Any, Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data

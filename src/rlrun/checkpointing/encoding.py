"""Encoding of states as named tensors and a JSON tree, decoding, and digests."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlrun.checkpointing.segments import StoredColumn, StoredRows
from rlrun.checkpointing.tensorfiles import bits, bytes_of
from rlrun.core.clock import is_clock
from rlrun.core.errors import RlrunError

PACKED = 64  # numbers from which on flags are packed as bits


def split(state: Any, prefix: str = "") -> tuple[dict[str, Tensor], Any]:
    """Split a state into tensors by name and a tree that JSON can hold.

    The tensors are on the CPU and own their memory; a tensor that occurs twice is stored once.

    Raises:
        RlrunError: it holds other things than tensors, arrays, numbers, text, and nests of these.
    """
    taker = Taker(copy=True)
    tree = taker.take(state, prefix)
    return taker.tensors, tree


class HeldRows(NamedTuple):
    """Rows of a memory in a state, and the name of the tensor with flags of the slots in use."""

    rows: StoredRows
    part: str
    used: str


@dataclass
class Taker:
    """Encodes states, and collects their tensors and rows.

    Without `copy`, a CPU tensor that owns its memory is shared. Rows are collected if there is a list for them;
    otherwise they become tensors.
    """

    copy: bool
    rows: list[HeldRows] | None = None
    part: str = ""
    tensors: dict[str, Tensor] = field(default_factory=dict)
    _names: dict[tuple[Any, ...], str] = field(default_factory=dict)
    _memory: set[int] = field(default_factory=set)  # addresses of tensors that were not copied

    def take(self, value: Any, place: str) -> Any:
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"$float": str(value)}
        if isinstance(value, Tensor):
            return self._take_tensor(value, place)
        if isinstance(value, StoredColumn):
            if self.rows is None:
                return self._take_tensor(torch.from_numpy(value.numpy()), place)
            known = [number for number, entry in enumerate(self.rows) if entry.rows is value.rows]
            if not known:
                used = self._store(torch.from_numpy(np.packbits(value.rows.used)), f"{place}/used")
                self.rows.append(HeldRows(value.rows, self.part, used))
            return {"$rows": [known[0] if known else len(self.rows) - 1, value.name]}
        if isinstance(value, np.ndarray | np.generic):
            array = np.array(value, order="C")
            if array.dtype.hasobject:
                raise RlrunError(f"a checkpoint keeps numbers and text; '{place}' is an array of python objects")
            note = {"dtype": array.dtype.str, "shape": list(array.shape), "scalar": isinstance(value, np.generic)}
            raw = torch.from_numpy(array.reshape(-1).view(np.uint8))  # any dtype and byte order
            return {"$array": [self._store(raw, place), note]}
        if isinstance(value, Mapping):
            inner = f"{place}/" if place else ""
            if all(type(key) is str for key in value) and not any(key.startswith("$") for key in value):
                return {key: self.take(part, inner + key) for key, part in value.items()}
            return {"$dict": [[self.take(key, place), self.take(part, f"{inner}{key}")] for key, part in value.items()]}
        if isinstance(value, list | tuple):
            parts = [self.take(part, f"{place}/{index}") for index, part in enumerate(value)]
            return parts if isinstance(value, list) else {"$tuple": parts}
        if isinstance(value, bytes):
            return {"$bytes": value.hex()}
        raise RlrunError(
            f"a checkpoint keeps tensors, arrays, numbers, text and nests of these; "
            f"'{place}' is a {type(value).__module__}.{type(value).__qualname__}"
        )

    def _take_tensor(self, value: Tensor, place: str) -> Any:
        if value.is_complex():  # safetensors does not know complex128
            return {"$complex": self._keep(torch.view_as_real(value.resolve_conj()), place)}
        if value.dtype == torch.bool and value.numel() >= PACKED:
            bits = np.packbits(value.detach().cpu().numpy())
            return {"$bits": [self._store(torch.from_numpy(bits), place), list(value.shape)]}
        return {"$tensor": self._keep(value, place)}

    def _keep(self, tensor: Tensor, place: str) -> str:
        tensor = tensor.detach()
        identity = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() and identity in self._names:
            return self._names[identity]
        self._names[identity] = name = self._store(self._own(tensor), place)
        return name

    def _own(self, tensor: Tensor) -> Tensor:
        """Return a tensor on the CPU that shares no memory with another stored one."""
        memory = tensor.untyped_storage()
        whole = tensor.is_contiguous() and memory.nbytes() == tensor.nbytes and memory.data_ptr() not in self._memory
        if self.copy or tensor.device.type != "cpu" or not whole:
            return tensor.to("cpu", copy=True, memory_format=torch.contiguous_format)
        self._memory.add(memory.data_ptr())
        return tensor

    def _store(self, tensor: Tensor, place: str) -> str:
        while place in self.tensors:
            place += "'"
        self.tensors[place] = tensor
        return place


def merge(tensors: Mapping[str, Tensor], tree: Any, rows: Sequence[Mapping[str, Any] | None] = ()) -> Any:
    """Return the state from the results of `split`.

    Args:
        tensors: by name.
        tree: the JSON value.
        rows: columns of each memory, by name.

    Raises:
        LookupError, RuntimeError, TypeError, ValueError: a marker in the tree has no value.
    """
    if isinstance(tree, list):
        return [merge(tensors, part, rows) for part in tree]
    if not isinstance(tree, dict):
        return tree
    kind = next(iter(tree)) if len(tree) == 1 else ""
    content: Any = tree.get(kind)
    if kind in ("$tensor", "$complex", "$bits", "$array"):
        return _tensor_of(kind, content, tensors)
    if kind == "$float":
        return float(content)
    if kind == "$bytes":
        return bytes.fromhex(content)
    if kind == "$tuple":
        return tuple([merge(tensors, part, rows) for part in content])
    if kind == "$dict":
        return {merge(tensors, key, rows): merge(tensors, part, rows) for key, part in content}
    if kind == "$rows":
        number, name = content
        return rows[number][name]  # type: ignore[index]  # unwanted parts have None
    return {key: merge(tensors, part, rows) for key, part in tree.items()}


def _tensor_of(kind: str, content: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return the tensor or array of a marker."""
    name, note = content if kind in ("$bits", "$array") else (content, {})
    tensor = tensors[name]
    if kind == "$tensor":
        return tensor
    if kind == "$complex":
        return torch.view_as_complex(tensor)
    raw = tensor.numpy()
    if kind == "$bits":
        return torch.from_numpy(bits(raw, math.prod(note)).reshape(note))
    array = np.empty(note["shape"], np.dtype(note["dtype"]))
    if array.nbytes:
        array.reshape(-1).view(np.uint8)[:] = raw
    return array[()] if note["scalar"] else array


def digest(state: Any) -> str:
    """Return a hash of a state, without entries that depend on the clock (`is_clock`).

    Rows of a memory are hashed as tensors, in main memory or on disk. The order of a mapping is ignored.

    Raises:
        RlrunError: it holds things that a checkpoint cannot hold.
    """
    hash_ = hashlib.sha256()
    _take(hash_, state)
    return hash_.hexdigest()


def _take(hash_: Any, value: Any) -> None:
    """Add a value and its parts to a hash, each after its kind and size."""
    if value is None or type(value) in (bool, int, str, float):
        _put(hash_, type(value).__name__, repr(value).encode("utf-8", "surrogatepass"))
    elif isinstance(value, Tensor):
        tensor = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
        _put(hash_, "tensor", f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        hash_.update(bytes_of(tensor).data)
    elif isinstance(value, StoredColumn):
        _put(hash_, "tensor", f"{value.dtype} {tuple(value.shape)}".encode())
        for piece in value.pieces():
            hash_.update(bytes_of(piece).data)
    elif isinstance(value, np.ndarray | np.generic):
        kind = "array" if isinstance(value, np.ndarray) else "number"
        _put(hash_, kind, f"{value.dtype.str} {value.shape}".encode())
        hash_.update(bytes_of(np.asarray(value)).data)
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

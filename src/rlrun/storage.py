"""State on disk: tensors in safetensors, everything else in JSON, no pickle.

A stored state is a folder that appears as a whole or not at all:

    tensors.safetensors      tensors and arrays of all parts
    tensors.1.safetensors    … of a large part that not every reader wants
    state.json               part -> its state, with a marker in place of each tensor
    manifest.json            size and sha256 of each file, and of itself
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from rlrun.errors import RlrunError, RunDirError, did_you_mean
from rlrun.files import reason, sync_directory, write_bytes

FORMAT = 1
TENSORS, STATE, MANIFEST = "tensors.safetensors", "state.json", "manifest.json"


def split(state: Any, prefix: str = "") -> tuple[dict[str, Tensor], Any]:
    """Take a state apart into tensors by name and a tree that JSON can hold.

    Tensors come back on the CPU, owning their memory; a tensor that occurs twice is kept once.

    Raises:
        RlrunError: it holds something else than tensors, arrays, numbers, text, and nests of these.
    """
    taker = _Taker(snapshot=True)
    tree = taker.take(state, prefix)
    return taker.tensors, tree


def merge(tensors: Mapping[str, Tensor], tree: Any) -> Any:
    """Put together what `split` took apart."""
    if isinstance(tree, list):
        return [merge(tensors, held) for held in tree]
    if not isinstance(tree, dict):
        return tree
    if len(tree) == 1:
        ((kind, held),) = tree.items()
        if kind in _PUT:
            return _PUT[kind](tensors, held)
    return {key: merge(tensors, held) for key, held in tree.items()}


class _Taker:
    """Walks a state once; remembers the tensors it has met.

    Without `snapshot` a tensor that lies on the CPU in memory of its own is not copied.
    """

    def __init__(self, *, snapshot: bool) -> None:
        self.snapshot = snapshot
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[tuple[Any, ...], str] = {}
        self._memory: set[int] = set()  # where tensors that were not copied lie

    def take(self, value: Any, place: str) -> Any:
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"$float": str(value)}
        if isinstance(value, Tensor):
            if value.is_complex():  # safetensors does not know complex128
                return {"$complex": self._keep(torch.view_as_real(value.resolve_conj()), place)}
            return {"$tensor": self._keep(value, place)}
        if isinstance(value, np.ndarray | np.generic):
            return self._take_array(value, place)
        if isinstance(value, Mapping):
            return self._take_mapping(value, place)
        if isinstance(value, list | tuple):
            held = [self.take(part, f"{place}/{index}") for index, part in enumerate(value)]
            return held if isinstance(value, list) else {"$tuple": held}
        if isinstance(value, bytes):
            return {"$bytes": value.hex()}
        raise RlrunError(
            f"a checkpoint keeps tensors, arrays, numbers, text and nests of these; "
            f"'{place}' is a {type(value).__module__}.{type(value).__qualname__}"
        )

    def _take_mapping(self, value: Mapping[Any, Any], place: str) -> Any:
        inner = f"{place}/" if place else ""
        if all(type(key) is str for key in value) and not any(key.startswith("$") for key in value):
            return {key: self.take(held, inner + key) for key, held in value.items()}
        pairs = [[self.take(key, place), self.take(held, f"{inner}{key}")] for key, held in value.items()]
        return {"$dict": pairs}

    def _take_array(self, value: Any, place: str) -> Any:
        array = np.array(value, order="C")
        if array.dtype.hasobject:
            raise RlrunError(f"a checkpoint keeps numbers and text; '{place}' is an array of python objects")
        note = {"dtype": array.dtype.str, "shape": list(array.shape), "scalar": isinstance(value, np.generic)}
        raw = torch.from_numpy(array.reshape(-1).view(np.uint8))  # any dtype and byte order
        return {"$array": [self._store(raw, place), note]}

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
        if self.snapshot or tensor.device.type != "cpu" or not whole:
            return tensor.to("cpu", copy=True, memory_format=torch.contiguous_format)
        self._memory.add(memory.data_ptr())
        return tensor

    def _store(self, tensor: Tensor, place: str) -> str:
        while place in self.tensors:
            place += "'"
        self.tensors[place] = tensor
        return place


def _array(tensors: Mapping[str, Tensor], held: Any) -> Any:
    name, note = held
    array = tensors[name].numpy().view(note["dtype"]).reshape(note["shape"]).copy()
    return array[()] if note["scalar"] else array


_PUT: dict[str, Callable[[Mapping[str, Tensor], Any], Any]] = {
    "$tensor": lambda tensors, held: tensors[held],
    "$complex": lambda tensors, held: torch.view_as_complex(tensors[held]),
    "$array": _array,
    "$float": lambda tensors, held: float(held),
    "$bytes": lambda tensors, held: bytes.fromhex(held),
    "$tuple": lambda tensors, held: tuple(merge(tensors, part) for part in held),
    "$dict": lambda tensors, held: {merge(tensors, key): merge(tensors, part) for key, part in held},
}


def save(
    directory: Path, states: Mapping[str, Any], *, about: Mapping[str, Any] | None = None, apart: Iterable[str] = ()
) -> None:
    """Write the states of named parts to a folder that appears complete or not at all.

    Args:
        directory: replaced if it exists.
        states: part -> what its `state_dict` returned.
        about: noted in the manifest.
        apart: parts whose tensors get a file of their own, which only those read who want the part.

    Raises:
        RlrunError: a state cannot be stored, or the disk does not take it; what was there before stays.
    """
    temporary = directory.with_name(f".{directory.name}.{os.getpid()}.tmp")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        note = {**(about or {}), "format": FORMAT, "parts": sorted(states)}
        _write(temporary, states, note, set(apart))
        _publish(temporary, directory)
    except OSError as error:
        raise RlrunError(f"{directory} cannot be written: {reason(error)}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def load(directory: Path, parts: Iterable[str] | None = None) -> dict[str, Any]:
    """Return the stored states by part, after comparing with its hash every file that they lie in.

    Raises:
        RunDirError: a file is missing or damaged, or a wanted part is not stored.
    """
    note = read_manifest(directory)
    wanted = list(note["parts"] if parts is None else parts)
    for name in wanted:
        if name not in note["parts"]:
            raise RunDirError(f"{directory} holds no part '{name}'{did_you_mean(name, note['parts'])}")
    tensors: dict[str, Tensor] = {}
    try:
        for name, entry in note["files"].items():
            if name != STATE and not set(entry.get("parts", wanted)).isdisjoint(wanted):
                tensors |= safetensors.torch.load(_read(directory / name, entry))
        tree = json.loads(_read(directory / STATE, note["files"][STATE]))
        return {name: merge(tensors, tree[name]) for name in wanted}
    except (KeyError, ValueError, SafetensorError) as error:
        raise RunDirError(f"{directory} is damaged: {error}") from error


def read_manifest(directory: Path) -> dict[str, Any]:
    """Return what a stored state says of itself.

    Raises:
        RunDirError: the manifest is missing, damaged, or of a format that this version does not know.
    """
    path = directory / MANIFEST
    try:
        note: dict[str, Any] = json.loads(path.read_bytes())
        expected = note.pop("sha256")
    except OSError as error:
        raise RunDirError(f"{path} cannot be read: {reason(error)}") from error
    except (ValueError, KeyError, AttributeError) as error:
        raise RunDirError(f"{path} is damaged: it is no manifest") from error
    if _hash(_encode(note)) != expected:
        raise RunDirError(f"{path} is damaged: its content does not match its hash")
    if note["format"] != FORMAT:
        raise RunDirError(f"{path} has format {note['format']}; this version of rlrun reads {FORMAT}")
    return note


def digest(state: Any) -> str:
    """Return one hash of a part's state; two states are identical where their digests are."""
    tensors, tree = split(state)
    return _hash(_encode(tree) + safetensors.torch.save(tensors))


def remove(directory: Path) -> None:
    """Delete a stored state; interrupted at any instant, no half of it stays under its name."""
    hidden = directory.with_name(f".{directory.name}.{os.getpid()}.old")
    shutil.rmtree(hidden, ignore_errors=True)
    os.rename(directory, hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def sweep(directory: Path) -> None:
    """Delete what a killed process left half written or half deleted in a folder of stored states."""
    for entry in directory.glob(".*"):
        if entry.is_dir() and entry.suffix in (".tmp", ".old"):
            shutil.rmtree(entry, ignore_errors=True)


def _write(directory: Path, states: Mapping[str, Any], note: Mapping[str, Any], apart: set[str]) -> None:
    """Write the files of a stored state one after another: no more than one lies in memory."""
    alone = sorted(apart & set(states))
    groups = {TENSORS: [part for part in states if part not in apart]}
    groups |= {f"tensors.{number}.safetensors": [part] for number, part in enumerate(alone, 1)}
    tree: dict[str, Any] = {}
    entries: dict[str, Any] = {}
    for name, parts in groups.items():
        taker = _Taker(snapshot=False)
        tree |= taker.take({part: states[part] for part in parts}, "")
        entries[name] = _put(directory / name, safetensors.torch.save(taker.tensors))
        entries[name] |= {"parts": parts} if name != TENSORS else {}
    entries[STATE] = _put(directory / STATE, _encode(tree))
    whole = {**note, "files": entries}
    _put(directory / MANIFEST, _encode({**whole, "sha256": _hash(_encode(whole))}))
    sync_directory(directory)


def _put(path: Path, data: bytes) -> dict[str, Any]:
    write_bytes(path, data)
    return {"size": len(data), "sha256": _hash(data)}


def _publish(temporary: Path, directory: Path) -> None:
    if directory.exists():
        remove(directory)
    os.rename(temporary, directory)
    sync_directory(directory.parent)


def _read(path: Path, entry: Mapping[str, Any]) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RunDirError(f"{path} cannot be read: {reason(error)}") from error
    if len(data) != entry["size"]:
        raise RunDirError(f"{path} is damaged: it has {len(data)} bytes, its manifest says {entry['size']}")
    if _hash(data) != entry["sha256"]:
        raise RunDirError(f"{path} is damaged: its content does not match its hash")
    return data


def _encode(tree: Any) -> bytes:
    return json.dumps(tree, indent=1, allow_nan=False).encode()


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()

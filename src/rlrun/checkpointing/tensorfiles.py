"""Safetensors files as streams: no second copy in memory, and every byte is hashed on its way.

8 bytes                 length of the header
header                  JSON: name -> dtype, shape, first and last byte after the header
numbers                 one tensor after another, without gaps
"""

import hashlib
import json
import math
import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.core.errors import RunDirError
from rlrun.core.files import WRITE, open_regular, parse_json, reason, write_all
from rlrun.core.typing import Array

CHUNK = 1 << 22
TORCH = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "F64": torch.float64,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
CODES = {dtype: code for code, dtype in TORCH.items()}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor to write: its entry in the header, and the source of its bytes."""

    code: str
    shape: tuple[int, ...]
    pieces: Callable[[], Iterable[Array]]  # in order

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * TORCH[self.code].itemsize


def item(tensor: Tensor) -> StoredTensor:
    """Return a contiguous tensor on the CPU as a `StoredTensor` that shares its memory."""
    raw = bytes_of(tensor)
    return StoredTensor(CODES[tensor.dtype], tuple(tensor.shape), lambda: (raw,))


def bytes_of(content: Tensor | Array) -> Array:
    """Return the bytes of a contiguous tensor on the CPU, which share its memory, or those of an array."""
    if isinstance(content, Tensor):
        numbers = content.as_strided((content.numel(),), (1,))  # one number of a column may keep the column's stride
        return numbers.view(torch.uint8).numpy() if content.numel() else np.empty(0, np.uint8)
    return np.ascontiguousarray(content).reshape(-1).view(np.uint8)


def bits(raw: Array, count: int) -> Array:
    """Return flags that were packed eight to a byte."""
    return np.unpackbits(raw, count=count).view(np.bool_)


def write(path: Path, items: Mapping[str, StoredTensor]) -> dict[str, Any]:
    """Write a file, wait until the disk has it, and return its size and hash.

    Raises:
        OSError: the disk does not take it.
    """
    ordered = sorted(items.items(), key=lambda pair: -TORCH[pair[1].code].itemsize)  # aligned without gaps
    header: dict[str, Any] = {}
    end = 0
    for name, entry in ordered:
        begin, end = end, end + entry.nbytes
        header[name] = {"dtype": entry.code, "shape": list(entry.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    handle = os.open(path, WRITE, 0o666)
    try:
        first = np.frombuffer(len(text).to_bytes(8, "little") + text, np.uint8)
        for piece in chain((first,), *(entry.pieces() for _, entry in ordered)):
            data = bytes_of(piece).data
            for begin in range(0, len(data), CHUNK):  # in chunks, so that other threads can run
                part = data[begin : begin + CHUNK]
                digest.update(part)
                write_all(handle, part)
        os.fsync(handle)
    finally:
        os.close(handle)
    return {"size": 8 + len(text) + end, "sha256": digest.hexdigest()}


class TensorFile:
    """A file of tensors, open for reading; its content is used only after a comparison with its hash.

    Args:
        path: the file.
        entry: its size and hash.

    Raises:
        RunDirError: it cannot be read, has another size, or its header is invalid.
    """

    def __init__(self, path: Path, entry: Mapping[str, Any]) -> None:
        self.path = path
        self.entry = entry
        self._file = os.fdopen(open_regular(path), "rb", buffering=0)
        weakref.finalize(self, self._file.close)  # stays readable until then, even if deleted
        size = os.fstat(self._file.fileno()).st_size
        if size != entry["size"]:
            raise RunDirError(f"{path} is damaged: it has {size:,} bytes, its manifest says {entry['size']:,}")
        self._digest = hashlib.sha256()
        length = int.from_bytes(self._take(np.empty(min(8, size), np.uint8), 0).tobytes(), "little")
        if size < 8 or length > size - 8:
            raise RunDirError(f"{path} is damaged: its header cannot have {length:,} bytes")
        text = self._take(np.empty(length, np.uint8), 8).tobytes()
        self._begin = 8 + length
        self.tensors = self._parse(parse_json(text, path))

    def _parse(self, header: Any) -> dict[str, tuple[str, tuple[int, ...], int, int]]:
        """Return code, shape, begin and end of each tensor, in the order of their bytes."""
        tensors = {}
        try:
            for name, entry in header.items():
                if name != "__metadata__":
                    begin, end = entry["data_offsets"]
                    tensors[name] = (entry["dtype"], tuple(entry["shape"]), begin, end)
            return dict(sorted(tensors.items(), key=lambda pair: pair[1][2:]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunDirError(f"{self.path} is damaged: {_line(error)}") from error

    def _take(self, into: Array, place: int, *, hashed: bool = True) -> Array:
        """Fill an array with bytes of the file; add them to the hash unless `hashed` is False."""
        rest = into.data
        try:
            self._file.seek(place)
            while len(rest):
                got = self._file.readinto(rest)
                if not got:
                    raise RunDirError(f"{self.path} is damaged: it ended while it was read")
                rest = rest[got:]
        except OSError as error:
            raise RunDirError(f"{self.path} cannot be read: {reason(error)}") from error
        if hashed:
            self._digest.update(into.data)
        return into

    def verify(self) -> None:
        """Compare all bytes with the hash.

        Raises:
            RunDirError: they do not match.
        """
        buffer = np.empty(CHUNK, np.uint8)
        for place in range(self._begin, self.entry["size"], CHUNK):
            self._take(buffer[: self.entry["size"] - place], place)
        self._compare()

    def _compare(self) -> None:
        if self._digest.hexdigest() != self.entry["sha256"]:
            raise RunDirError(f"{self.path} is damaged: its content does not match its hash")

    def load(self) -> dict[str, Tensor]:
        """Return all tensors, after comparing the hash.

        Raises:
            RunDirError: they do not match it.
        """
        tensors = {}
        try:
            for name, (code, shape, begin, _) in self.tensors.items():
                tensor = tensors[name] = torch.empty(shape, dtype=TORCH[code])
                raw = bytes_of(tensor)
                for place in range(0, len(raw), CHUNK):
                    self._take(raw[place : place + CHUNK], self._begin + begin + place)
        except (KeyError, RuntimeError, OverflowError, TypeError, ValueError) as error:  # a damaged header
            raise RunDirError(f"{self.path} is damaged: {_line(error)}") from error
        self._compare()
        return tensors

    def read(self, name: str, begin: int, end: int) -> Array:
        """Return the bytes of the rows of a tensor from `begin` to `end`; the hash is not compared."""
        _, shape, first, last = self.tensors[name]
        width = (last - first) // max(shape[0], 1)
        return self._take(np.empty((end - begin) * width, np.uint8), self._begin + first + begin * width, hashed=False)


def _line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type."""
    return (str(error).splitlines() or [type(error).__name__])[0] if not isinstance(error, KeyError) else f"no {error}"

"""A file of arrays: a zip, whose checksums are compared before any member is used.

Members are not compressed, so they are read piece by piece, and each is smaller than the file.
"""

import json
import math
import os
import re
import struct
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import numpy as np

from rlrun.core.errors import RequestError, RlrunError
from rlrun.core.files import open_regular, reason, sync_directory
from rlrun.core.typing import Array

PIECE = 1 << 22  # bytes read at a time
MARK = b"PK\x03\x04"  # first bytes of a zip
WANTED = "dataset and memory.import take a file of memory.export, or minari:DATASET, which Minari makes of your arrays"
PICKLE = "not read, because loading it runs whatever code it holds"


@contextmanager
def create(path: Path, *, public: bool = False) -> Iterator[ZipFile]:
    """Write a zip that appears under its name only when it is complete.

    public: everybody may read it, not only its owner.

    Raises:
        RlrunError: the disk does not take it; an earlier file stays.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)
        with os.fdopen(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "w+b") as file:
            with ZipFile(file, "w", ZIP_STORED) as archive:
                yield archive
            os.chmod(temporary, 0o644 if public else 0o600)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_directory(path.parent)
    except OSError as error:
        raise RlrunError(f"{path} cannot be written: {reason(error)}") from error
    finally:
        temporary.unlink(missing_ok=True)


def sweep(path: Path) -> None:
    """Delete temporary files of a killed process next to a file that only this process writes."""
    for leftover in path.parent.glob(f".{path.name}.*.tmp"):
        leftover.unlink(missing_ok=True)


@contextmanager
def read(path: Path, *, verify: bool = True) -> Iterator[ZipFile]:
    """Open a zip after comparing its checksums, unless `verify` is False.

    Raises:
        RequestError: it is missing, damaged, cut short, a pickle, or another kind of file.
    """
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            start = file.read(len(MARK))
            if re.match(rb"\x80[\x02-\x08]", start):
                raise RequestError(f"{path} is a pickle: {PICKLE}")
            if start != MARK:
                raise RequestError(f"{path} is no stored memory: it does not begin like one; {WANTED}")
            with ZipFile(file) as archive:
                if "data.pickle" in archive.namelist():
                    legacy = "is in Emote's legacy format, a pickle"
                    raise RequestError(f"{path} {legacy}: {PICKLE}; export it as V1 with Emote")
                for member in archive.infolist():
                    if member.compress_type != ZIP_STORED or member.flag_bits & 1:
                        raise RequestError(f"{path} is refused: '{member.filename}' in it is compressed or encrypted")
                if verify and (name := archive.testzip()) is not None:
                    raise RequestError(f"{path} is damaged: its member '{name}' does not match its checksum")
                yield archive
    # zipfile raises NotImplementedError for unknown compressions and versions
    except (BadZipFile, NotImplementedError, EOFError, struct.error, UnicodeDecodeError) as error:
        raise RequestError(f"{path} is damaged or cut short: {error}") from error
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {reason(error)}") from error


def write_json(archive: ZipFile, name: str, value: Any) -> None:
    """Add a JSON member."""
    archive.writestr(name, json.dumps(value, indent=1, allow_nan=False))


def read_json(archive: ZipFile, name: str, path: Path) -> dict[str, Any]:
    """Return a JSON member that holds a dict.

    Raises:
        RequestError: it is missing or something else.
    """
    try:
        value = json.loads(archive.read(name))
    except KeyError:
        raise RequestError(f"{path} is no stored memory: it has no member '{name}'; {WANTED}") from None
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{path} is damaged: its member '{name}' is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise RequestError(f"{path} is damaged: its member '{name}' is no set of keys")
    return value


def write_array(archive: ZipFile, name: str, shape: tuple[int, ...], dtype: Any, pieces: Iterable[Array]) -> None:
    """Add an array member in numpy's format, piece by piece along its first axis."""
    with archive.open(name, "w", force_zip64=True) as member:
        note = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_2_0(member, note)
        for piece in pieces:
            member.write(np.ascontiguousarray(piece, dtype).reshape(-1).view(np.uint8).data)


class ArrayMember:
    """An array member, read from its first row to its last.

    Raises:
        RequestError: it is missing, or its header does not fit its size.
    """

    def __init__(self, archive: ZipFile, name: str, path: Path) -> None:
        try:
            self._file = archive.open(name)
        except KeyError:
            raise RequestError(f"{path} is damaged: it has no member '{name}'") from None
        place = f"{path} is refused: its member '{name}'"
        try:
            version = np.lib.format.read_magic(self._file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            self.shape, by_column, self.dtype = read(self._file)  # refuses a header above 10 000 bytes
        except (ValueError, EOFError) as error:
            message = str(error).splitlines()[0]
            raise RequestError(f"{path} is damaged: its member '{name}' is no array: {message}") from error
        if self.dtype.hasobject:
            raise RequestError(f"{place} holds python objects, a pickle: {PICKLE}")
        if by_column and len(self.shape) > 1:
            raise RequestError(f"{place} is stored column by column")
        if not self.shape or min(self.shape) < 0:
            raise RequestError(f"{place} has shape {list(self.shape)}; wanted rows")
        self._width = self.dtype.itemsize * math.prod(self.shape[1:])  # bytes of a row
        if self._file.tell() + self._width * self.shape[0] != archive.getinfo(name).file_size:
            raise RequestError(f"{path} is damaged: the header of '{name}' does not fit its size")

    def __len__(self) -> int:
        return self.shape[0]

    def take(self, count: int) -> Array:
        """Return the next rows [count, …]."""
        data = self._file.read(count * self._width)
        return np.ndarray((count, *self.shape[1:]), self.dtype, buffer=data)

    def all(self) -> Array:
        """Return all rows at once."""
        return self.take(len(self))

    def pieces(self) -> Iterator[Array]:
        """Yield all rows, some at a time."""
        step = max(PIECE // max(self._width, 1), 1)
        for start in range(0, len(self), step):
            yield self.take(min(step, len(self) - start))

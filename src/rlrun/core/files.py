"""Files that a power cut leaves whole: written, read, and described in messages."""

import json
import math
import os
import stat
import tempfile
import threading
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlrun.core.errors import RequestError, RlrunError, RunDirError

NOTE_BYTES = 1 << 23  # of a manifest, summary or status, at most
READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
OWN = READ | os.O_RDWR | os.O_APPEND | os.O_CREAT
WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def reason(error: OSError) -> str:
    """Return the operating system's message, without the path."""
    return error.strerror or str(error)


def place_of(path: str | os.PathLike[str]) -> Path:
    """Return an absolute path without `..`; raise a RequestError for values of other types."""
    if not isinstance(path, str | os.PathLike):
        raise RequestError(f"wanted the path of one run or file, got {path!r:.60}")
    place = Path(path).absolute()
    return place.resolve() if ".." in place.parts else place


def sized(count: float) -> str:
    """Return a number of bytes as text, such as `1.5 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.95:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def counted(number: int, what: str) -> str:
    """Return `1 episode`, `2 episodes`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def aligned(rows: Sequence[Sequence[str]], *, left: Container[str] = ()) -> list[str]:
    """Return a table as aligned lines; the first row has the heads, and columns named in `left` align left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = ["<" if head in left else ">" for head in rows[0]]
    return [
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)).rstrip()
        for row in rows
    ]


def sync_directory(path: Path) -> None:
    """Make renames inside a folder survive a power cut; Windows needs no call for it."""
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync(path: Path) -> None:
    """Wait until the disk has what was appended to a file; do nothing if the file is missing.

    Raises:
        RlrunError: the disk does not take it.
    """
    try:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    except FileNotFoundError:
        return
    except OSError as error:
        raise RlrunError(f"{path} cannot be written: {reason(error)}") from error


def require_writable(folder: Path, way_out: str = "") -> None:
    """Refuse a folder that is not writable.

    Raises:
        RequestError: with the reason, then `way_out`.
    """
    try:
        with tempfile.TemporaryFile(dir=folder):  # only an attempt shows that a disk is read-only
            pass
    except OSError as error:
        raise RequestError(f"{folder} cannot be written: {reason(error)}{way_out}") from error


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file and wait until the disk has it."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_all(handle: int, data: Any) -> None:
    """Write all bytes to an open file, in several calls if the system takes only some of them."""
    rest = memoryview(data)
    while len(rest):
        rest = rest[os.write(handle, rest) :]


def write_text(path: Path, text: str) -> None:
    """Replace a file by a text; see `replace`."""
    replace(path, text.encode())


def replace(path: Path, data: bytes) -> None:
    """Replace a file as a whole: a reader, or a run after a power cut, finds the old content or the new one.

    Raises:
        RlrunError: the disk is full or does not take the file.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        write_bytes(temporary, data)
        os.replace(temporary, path)
        sync_directory(path.parent)
    except OSError as error:
        with suppress(OSError):  # on a read-only file system it would hide the cause
            temporary.unlink(missing_ok=True)
        raise RlrunError(f"{path} cannot be written: {reason(error)}") from error


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file as a whole."""
    write_text(path, json_text(value))


def json_text(value: Any) -> str:
    """Return the content of a JSON file; numbers that JSON lacks (NaN, infinity) become null."""
    return json.dumps(finite(value), indent=2, allow_nan=False, default=str) + "\n"


def open_regular(path: Path) -> int:
    """Open a file for reading.

    Raises:
        RunDirError: it is missing, unreadable, or a folder, pipe or device.
    """
    try:
        handle = os.open(path, READ)
    except OSError as error:
        raise RunDirError(f"{path} cannot be read: {reason(error)}") from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise RunDirError(f"{path} cannot be read: it is not a plain file")
    return handle


def open_own(path: Path) -> int:
    """Open a file for reading and appending; make it if it is absent.

    Raises:
        RunDirError: it cannot be written.
    """
    try:
        return os.open(path, OWN, 0o666)
    except OSError as error:
        raise RunDirError(f"{path} cannot be used: {reason(error)}") from error


def read_bytes(path: Path) -> bytes:
    """Return the content of a file.

    Raises:
        RunDirError: it cannot be read.
    """
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            return file.read()
    except OSError as error:
        raise RunDirError(f"{path} cannot be read: {reason(error)}") from error


def head(path: Path, most: int) -> bytes:
    """Return the first bytes of a file; empty if it cannot be read."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            return file.read(most)
    except (OSError, RunDirError):
        return b""


def parse_json(data: bytes, path: Path) -> Any:
    """Return the value of a JSON text; NaN and infinity are refused.

    Raises:
        RunDirError: it is not JSON.
    """
    try:
        return json.loads(data, parse_constant=_refuse)
    except ValueError as error:
        raise RunDirError(f"{path} is damaged: {error}") from error


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a number of JSON")


def read_json(path: Path) -> Any:
    """Return the value of a JSON file.

    Raises:
        RunDirError: it is missing or damaged.
    """
    return parse_json(read_bytes(path), path)


def known(path: Path) -> dict[str, Any]:
    """Return the mapping of a JSON file; empty if it is missing or damaged."""
    try:
        content = read_json(path)
    except RlrunError:
        return {}
    return content if isinstance(content, dict) else {}


def finite(value: Any) -> Any:
    """Return a value in which every NaN and infinity is None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


def duration(seconds: float) -> str:
    """Return a time as h:mm:ss, or m:ss below an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"

"""Writes that a power cut cannot tear, and the reading side of them."""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlrun.errors import RlrunError, RunDirError


def reason(error: OSError) -> str:
    """Return what the operating system said, without the path."""
    return error.strerror or str(error)


def sync_directory(path: Path) -> None:
    """Make renames inside a folder last; where folders cannot be opened there is nothing to do."""
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file and wait until the disk has it."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_text(path: Path, text: str) -> None:
    """Replace a file as a whole: a reader, or a run after a power cut, finds the old text or the new one.

    Raises:
        RlrunError: the disk is full or does not take the file.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        write_bytes(temporary, text.encode())
        os.replace(temporary, path)
        sync_directory(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise RlrunError(f"{path} cannot be written: {reason(error)}") from error


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file as a whole; numbers that JSON lacks (NaN, infinity) become null."""
    write_text(path, json.dumps(finite(value), indent=2, allow_nan=False, default=str) + "\n")


def read_json(path: Path) -> Any:
    """Return what a JSON file holds.

    Raises:
        RunDirError: it is missing or damaged.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunDirError(f"{path} cannot be read: {reason(error)}") from error
    except ValueError as error:
        raise RunDirError(f"{path} is damaged: {error}") from error


def finite(value: Any) -> Any:
    """Return a value in which every NaN and infinity is None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(held) for key, held in value.items()}
    return [finite(held) for held in value] if isinstance(value, list | tuple) else value

"""The manifest of a stored state, which holds its own hash. It needs neither torch nor numpy."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rlrun.core.errors import RunDirError
from rlrun.core.files import parse_json, read_bytes

FORMAT = 2
TENSORS, STATE, MANIFEST = "tensors.safetensors", "state.json", "manifest.json"
NAME = re.compile(r"[0-9a-f]{64}\.safetensors")  # of a segment
SEAL = ',\n "sha256": "{}"\n}}'  # the end of a manifest


@dataclass(frozen=True)
class CheckpointManifest:
    """The manifest of a stored state.

    Attributes:
        parts: names of the parts.
        files: name -> `size`, `sha256`, and `parts` if only readers of these need the file.
        segments: name -> `size` and `sha256` of a file that other states share.
        env_steps, updates, created, evaluation: of the moment of saving; None if unknown.
    """

    parts: list[str]
    files: dict[str, dict[str, Any]]
    segments: dict[str, dict[str, Any]]
    env_steps: int | None = None
    updates: int | None = None
    created: str | None = None
    evaluation: dict[str, Any] | None = None


def read_manifest(directory: Path) -> CheckpointManifest:
    """Return the manifest of a stored state.

    Raises:
        RunDirError: the manifest is missing, damaged, or of an unknown format.
    """
    path = directory / MANIFEST
    data = read_bytes(path)
    note = parse_json(data, path)
    if not isinstance(note, dict) or "format" not in note:
        raise RunDirError(f"{path} is damaged: it is not a manifest")
    if note["format"] != FORMAT:
        raise RunDirError(f"{path} has format {str(note['format'])[:80]}; this version of rlrun reads {FORMAT}")
    if data != _sealed(data[: -len(_sealed(b"\n}"))] + b"\n}"):
        raise RunDirError(f"{path} is damaged: its content does not match its hash")
    return CheckpointManifest(
        **{entry.name: note[entry.name] for entry in fields(CheckpointManifest) if entry.name in note}
    )


def seal(note: Mapping[str, Any]) -> bytes:
    """Return a manifest with its own hash as its last entry."""
    return _sealed(json.dumps(note, indent=1, allow_nan=False).encode())


def _sealed(text: bytes) -> bytes:
    return text[:-2] + SEAL.format(hash_of(text)).encode()


def read_file(path: Path, entry: Mapping[str, Any]) -> bytes:
    """Return the content of a file, after comparing its size and hash.

    Raises:
        RunDirError: it cannot be read, or is damaged.
    """
    data = read_bytes(path)
    if len(data) != entry["size"]:
        raise RunDirError(f"{path} is damaged: it has {len(data):,} bytes, its manifest says {entry['size']:,}")
    if hash_of(data) != entry["sha256"]:
        raise RunDirError(f"{path} is damaged: its content does not match its hash")
    return data


def hash_of(data: bytes) -> str:
    """Return the hash of a file's content."""
    return hashlib.sha256(data).hexdigest()

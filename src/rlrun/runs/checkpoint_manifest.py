"""The manifest of a stored state, checked as if an attacker had written it. It needs neither torch nor numpy."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rlrun.core.errors import RunDirError
from rlrun.runs.files import NOTE_BYTES, parse_json, read_bytes

FORMAT = 2
TENSORS, STATE, MANIFEST = "tensors.safetensors", "state.json", "manifest.json"
HASH = re.compile(r"[0-9a-f]{64}")
NAME = re.compile(r"[0-9a-f]{64}\.safetensors")  # of a segment
SEAL = ',\n "sha256": "{}"\n}}'  # the end of a manifest
FILE = re.compile(r"tensors(\.\d{1,6})?\.safetensors|state\.json")


@dataclass(frozen=True)
class CheckpointManifest:
    """The manifest of a stored state.

    Attributes:
        parts: names of the parts.
        files: name -> `size`, `sha256`, and `parts` where it does not concern all readers.
        segments: name -> `size` and `sha256` of a file that other states share.
        env_steps, updates, created, evaluation: when it was saved, as far as it says.
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
        RunDirError: the manifest is missing, damaged, or of a format that this version does not know.
    """
    path = directory / MANIFEST
    data = read_bytes(path, most=NOTE_BYTES)
    note = parse_json(data, path)
    check_manifest(note, path)
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
    """Return what a file holds, compared with its size and hash.

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
    """Return the hash by which files are known."""
    return hashlib.sha256(data).hexdigest()


def check_manifest(note: Any, path: Path) -> None:
    """Refuse a manifest in which something is missing or of another kind than it has to be.

    Raises:
        RunDirError: names it, or the format that this version does not know.
    """
    if not isinstance(note, dict) or "format" not in note:
        raise RunDirError(f"{path} is damaged: it is not a manifest")
    if note["format"] != FORMAT:
        raise RunDirError(f"{path} has format {str(note['format'])[:80]}; this version of rlrun reads {FORMAT}")
    if not _is_list_of_strings(note.get("parts")):
        raise RunDirError(f"{path} is damaged: it does not list its parts")
    for name in ("env_steps", "updates"):
        if name in note and not is_count(note[name]):
            raise RunDirError(f"{path} is damaged: its {name} is not a number")
    if not isinstance(note.get("created", ""), str):
        raise RunDirError(f"{path} is damaged: the time when it was created is not a text")
    stats, numbers = note.get("evaluation"), ("mean_return", "std_return", "episodes", "objective", "env_steps")
    if stats is not None and not (
        isinstance(stats, dict) and all(type(stats.get(name, 0)) in (int, float, type(None)) for name in numbers)
    ):
        raise RunDirError(f"{path} is damaged: its evaluation is none")
    for key, pattern in (("files", FILE), ("segments", NAME)):
        entries = note.get(key)
        if not isinstance(entries, dict):
            raise RunDirError(f"{path} is damaged: it does not list its {key}")
        for name, entry in entries.items():
            if not pattern.fullmatch(name):
                raise RunDirError(f"{path} is damaged: {name[:200]!a} is not a name of one of its {key}")
            known = isinstance(entry, dict) and is_count(entry.get("size")) and isinstance(entry.get("sha256"), str)
            if not (known and HASH.fullmatch(entry["sha256"]) and _is_list_of_strings(entry.get("parts", []))):
                raise RunDirError(f"{path} is damaged: what it says of {name} is not a size and hash")
    if not {TENSORS, STATE} <= note["files"].keys():
        raise RunDirError(f"{path} is damaged: it lacks {TENSORS} or {STATE}")


def is_count(number: Any) -> bool:
    """Return True if JSON held a whole number that can count something."""
    return type(number) is int and number >= 0


def _is_list_of_strings(overrides: Any) -> bool:
    return isinstance(overrides, list) and all(isinstance(override, str) for override in overrides)

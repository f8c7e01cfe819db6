"""Writing, reading, checking and deleting stored states."""

import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from rlrun.checkpointing import segments, tensorfiles
from rlrun.checkpointing.encoding import HeldRows, Taker, merge
from rlrun.checkpointing.manifest import (
    FORMAT,
    MANIFEST,
    NAME,
    STATE,
    TENSORS,
    hash_of,
    read_file,
    read_manifest,
    seal,
)
from rlrun.checkpointing.segments import Changes, home_of, open_rows
from rlrun.checkpointing.tensorfiles import StoredTensor, TensorFile
from rlrun.core.errors import RlrunError, RunDirError, did_you_mean
from rlrun.core.files import parse_json, reason, sync_directory, write_bytes
from rlrun.core.machine import main_memory

COPIED = 4  # changed rows are copied if they take at most 1 / COPIED of main memory


@dataclass
class Snapshot:
    """Encoded states, ready to be written.

    Attributes:
        copied: it shares no memory with the parts, so that they may change.
    """

    copied: bool
    about: dict[str, Any]
    files: dict[str, tuple[list[str], dict[str, StoredTensor]]]  # name -> its parts, and its tensors
    tree: dict[str, Any]
    rows: list[HeldRows]


def snapshot(
    states: Mapping[str, Any],
    *,
    about: Mapping[str, Any] | None = None,
    apart: Iterable[str] = (),
    copy: bool = True,
) -> Snapshot:
    """Encode the states of named parts, for `write`.

    Args:
        states: part -> result of its `state_dict`, or of the `checkpoint` of a memory.
        about: entries of the manifest.
        apart: parts whose tensors get a file of their own, which readers of other parts skip.
        copy: so that training can continue during the write; otherwise they share memory with the parts. Rows that
            would take more than a quarter of main memory are still not copied: see `Snapshot.copied`.

    Raises:
        RlrunError: a state cannot be stored.
    """
    alone = sorted(set(apart) & set(states))
    groups = {TENSORS: [part for part in states if part not in alone]}
    groups |= {f"tensors.{number}.safetensors": [part] for number, part in enumerate(alone, 1)}
    result = Snapshot(False, {**(about or {}), "parts": sorted(states)}, {}, {}, [])
    for name, parts in groups.items():
        taker = Taker(copy=copy, rows=result.rows)
        for part in parts:
            taker.part = part
            result.tree[part] = taker.take(states[part], part)
        result.files[name] = (parts, {key: tensorfiles.item(tensor) for key, tensor in taker.tensors.items()})
    changed = [memory.rows for memory in result.rows if isinstance(memory.rows, Changes)]
    if copy and COPIED * sum(rows.nbytes for rows in changed) <= main_memory():  # there is room for a copy
        for rows in changed:
            rows.live.copy()
        result.copied = True
    return result


def write(directory: Path, taken: Snapshot) -> None:
    """Write a snapshot to a folder that appears complete or not at all; any thread may do so.

    Args:
        directory: replaced if it exists; rows of memories go to `segments/` next to it.
        taken: result of `snapshot`.

    Raises:
        RlrunError: the disk does not take it; an earlier state stays.
        RunDirError: a segment shared with earlier states is gone or damaged.
    """
    temporary, home = directory.with_name(f".{directory.name}.{os.getpid()}.tmp"), home_of(directory.parent)
    rows: list[dict[str, Any]] = []  # the segments and columns of each memory
    entries: dict[str, Any] = {}  # manifest entries of the segments
    try:
        for memory in taken.rows:
            links = segments.write(memory.rows, home).links
            blocks = {name: [kind.str, list(shape)] for name, (kind, shape) in memory.rows.kinds.items()}
            note = {"part": memory.part, "size": len(memory.rows.used), "used": memory.used, "blocks": blocks}
            rows.append({**note, "segments": [link.name for link in links]})
            entries |= {link.name: link.entry for link in links}
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        files = {}
        for name, (parts, items) in taken.files.items():
            files[name] = tensorfiles.write(temporary / name, items) | ({"parts": parts} if name != TENSORS else {})
        data = json.dumps({"parts": taken.tree, "rows": rows}, allow_nan=False).encode()
        write_bytes(temporary / STATE, data)
        files[STATE] = {"size": len(data), "sha256": hash_of(data)}
        about = {**taken.about, "format": FORMAT, "files": files, "segments": entries}
        write_bytes(temporary / MANIFEST, seal(about))
        sync_directory(temporary)
        if directory.exists():
            remove(directory)
        os.rename(temporary, directory)
        sync_directory(directory.parent)
    except OSError as error:
        raise RlrunError(f"{directory} cannot be written: {reason(error)}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def load(directory: Path, parts: Iterable[str] | None = None) -> dict[str, Any]:
    """Return the stored states by part, after comparing each of their files with its hash.

    Rows of memories stay on disk; a memory reads their columns in pieces.

    Raises:
        RunDirError: a file is missing or damaged, or a wanted part is not stored.
    """
    note = read_manifest(directory)
    wanted = list(note.parts if parts is None else parts)
    for name in wanted:
        if name not in note.parts:
            raise RunDirError(f"{directory} holds no part '{name}'{did_you_mean(name, note.parts)}")
    tensors: dict[str, Tensor] = {}
    for name, entry in note.files.items():
        if name != STATE and not set(entry.get("parts", wanted)).isdisjoint(wanted):
            tensors |= TensorFile(directory / name, entry).load()
    tree = parse_json(read_file(directory / STATE, note.files[STATE]), directory / STATE)
    try:
        rows = open_rows(directory, note, tree["rows"], tensors, wanted)
        return {name: merge(tensors, tree["parts"][name], rows) for name in wanted}
    except (KeyError, ValueError, TypeError, AttributeError, IndexError, OverflowError, RuntimeError) as error:
        what = f"there is no {error}" if isinstance(error, KeyError) else (str(error).splitlines() or [""])[0]
        raise RunDirError(f"{directory / STATE} is damaged: {what}") from error


def verify(directory: Path) -> list[str]:
    """Return a message for each missing or damaged file of a stored state.

    Every byte is read, also of the segments that it shares with others.
    """
    try:
        note = read_manifest(directory)
    except RunDirError as error:
        return [str(error)]
    home, problems = home_of(directory.parent), []
    files = [(directory / name, entry) for name, entry in note.files.items()]
    files += [(home / name, entry) for name, entry in note.segments.items()]
    for path, entry in files:
        try:
            if path.suffix == ".json":
                read_file(path, entry)
            else:
                TensorFile(path, entry).verify()
        except RunDirError as error:
            problems.append(str(error))
    if not problems:
        try:
            load(directory)
        except RunDirError as error:
            problems.append(str(error))
    return problems


def remove(directory: Path) -> None:
    """Delete a stored state; if interrupted, its name has the whole state or none."""
    hidden = directory.with_name(f".{directory.name}.{os.getpid()}.old")
    shutil.rmtree(hidden, ignore_errors=True)
    os.rename(directory, hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def sweep(directory: Path) -> None:
    """Delete incomplete states of killed processes in a folder of stored states, and unneeded segments."""
    for entry in directory.glob(".*"):
        if entry.is_dir() and entry.suffix in (".tmp", ".old"):
            shutil.rmtree(entry, ignore_errors=True)
        elif entry.suffix == ".tmp":
            _delete(entry)
    collect(directory)


def collect(directory: Path) -> None:
    """Delete the segments that no stored state in a folder needs.

    If a manifest cannot be read, nothing is deleted, as its state may need any segment.
    """
    home, needed = home_of(directory), set[str]()
    if not home.is_dir():
        return
    for entry in directory.iterdir():  # includes copies under other names, and states being deleted
        if not (entry / MANIFEST).exists() and not (entry / STATE).exists():
            continue
        try:
            needed.update(read_manifest(entry).segments)
        except RunDirError:
            return
    for entry in home.iterdir():
        spare = NAME.fullmatch(entry.name) and entry.name not in needed
        if spare or (entry.name.startswith(".") and entry.suffix == ".tmp"):
            _delete(entry)


def _delete(path: Path) -> None:
    with contextlib.suppress(OSError):  # leftovers do no harm
        path.unlink()

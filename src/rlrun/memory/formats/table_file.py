"""A table in one file, without pickle: `store` and `restore`.

    table.json             description: columns, envs, length, kinds of sampler and ejector
    state.safetensors      states of the index, the sampler and the ejector
    slots.npy              [R] the slot of each stored row
    episodes.npy           [E, 2] rows of each episode, oldest first, and whether it is still open
    tags/<name>.npy        [E, …]
    columns/<name>.npy     [R, …] the rows, episode after episode

The file is a zip, whose checksums are compared before it is used: see `rlrun.memory.formats.archive`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import safetensors.torch

from rlrun import checkpointing as storage
from rlrun.core.errors import RequestError
from rlrun.core.spaces import Spaces, nest
from rlrun.core.typing import Stateful
from rlrun.core.version import VERSION
from rlrun.env.descriptions import describe_spaces
from rlrun.memory.formats import archive
from rlrun.memory.formats.archive import ArrayMember
from rlrun.memory.table.episodes import Episode, Stored, add_all, fit, newest
from rlrun.memory.table.recorder import Recorder
from rlrun.memory.table.samplers import Sampler

KIND, FORMAT = "rlrun.memory", 2
KINDS = ("index", "sampler", "ejector")  # parts of a table whose classes a file names


def store(table: Recorder, path: Path | str, *, public: bool = False, spaces: Spaces | None = None) -> None:
    """Write a table to a file, which replaces an earlier one only once it is complete.

    Args:
        table: its rows, episodes and tags, and the state of its sampler and ejector; adaptors are not stored.
        path: the file; folders above it are made.
        public: readable by everybody on this machine (mode 0644), in place of its owner only (0600).
        spaces: of the environment; they give bounds and choices to a policy that learns from the file alone.

    Raises:
        RlrunError: the disk does not take it; an earlier file stays.
    """
    stored = Stored.of(table, partial=True)
    tensors, tree = storage.split(_state(table))
    rows = len(stored.slots)
    with archive.create(Path(path), public=public) as file:
        note = {"kind": KIND, "format": FORMAT, "rlrun": VERSION, "rows": rows, "episodes": len(stored)}
        if spaces is not None and (described := describe_spaces(spaces)) is not None:
            note["spaces"] = described
        archive.write_json(file, "table.json", {**note, "table": _identity(table), "state": tree})
        file.writestr("state.safetensors", safetensors.torch.save(tensors))
        archive.write_array(file, "slots.npy", (rows,), np.int64, [stored.slots])
        episodes = np.stack([stored.length, stored.open], 1)
        archive.write_array(file, "episodes.npy", episodes.shape, np.int64, [episodes])
        for name, values in stored.tags.items():
            archive.write_array(file, f"tags/{name}.npy", values.shape, values.dtype, [values])
        for name, column in stored.columns.items():
            shape = (rows, *column.shape)
            archive.write_array(file, f"columns/{name}.npy", shape, column.dtype, stored.pieces(name, frames=True))


def restore(table: Recorder, path: Path | str, *, append: bool = False, limit: int | None = None) -> bool:
    """Read a file into a table.

    A table with the same columns, envs, length and kinds of sampler and ejector gets exactly the stored state, so it
    draws the same samples. Any other table gets the episodes as new ones; a smaller table keeps the newest, and open
    episodes count as cut off.

    Args:
        table: its rows are replaced.
        path: a file that `store` wrote.
        append: keep the rows of the table, and add the episodes.
        limit: as `newest` takes it; then the episodes are added as new ones.

    Returns:
        True if the table has exactly the stored state.

    Raises:
        RequestError: the file is missing or damaged, of a newer version, or its columns do not fit; the table is
            unchanged.
    """
    path = Path(path)
    with archive.read(path) as file:
        note = _note(file, path)
        if not append and limit is None and not table.observed and note["table"] == _identity(table):
            _restore_state(table, file, note, path)
            return True
        nothing = {name: member.take(0) for name, member in _columns(file, note, path).items()}
        sample = Episode(nest(nothing), tags=dict.fromkeys(note["table"]["tags"], 0))
        fit(table, sample, str(path))  # before any row is dropped
        _require_choices(table, file, note, path)
        episodes = newest(_episodes(file, note, path), limit, str(path))
        add_all(table, (fit(table, record, str(path)) for record in episodes), append=append)
        return False


def about(path: Path | str) -> dict[str, Any]:
    """Return the description of a file's table: `rows`, `episodes`, and `table` with the columns.

    Raises:
        RequestError: it is missing, damaged or of a newer version.
    """
    with archive.read(Path(path)) as file:
        note = _note(file, Path(path))
    return {name: value for name, value in note.items() if name != "state"}


def is_memory(path: Path) -> bool:
    """Return True for a sound file that `store` wrote."""
    try:
        return bool(about(path))
    except RequestError:
        return False


def _identity(table: Recorder) -> dict[str, Any]:
    """Return the properties that tables must share to load each other's state."""
    columns = {name: [list(column.shape), column.dtype] for name, column in table.storage.columns.items()}
    sparse = {name: part.column.every for name, part in table.storage.sparse.items()}
    return {
        **({"sparse": sparse} if sparse else {}),
        "columns": columns,
        "tags": sorted(table.tags),
        "num_envs": table.index.num_envs,
        "size": table.index.size,
        "min_length": table.index.min_length,
        "margin": table.index.margin,
        "index": _kind(table.index),
        "sampler": _kind(table.sampler),
        "ejector": _kind(table.ejector),
    }


def _kind(part: object) -> str:
    """Return the name of a part's class, and of the sampler inside it if there is one."""
    inner = [_kind(value) for value in getattr(part, "__dict__", {}).values() if isinstance(value, Sampler)]
    return _exported(f"{type(part).__module__}.{type(part).__qualname__}") + (f"({', '.join(inner)})" if inner else "")


def _exported(kind: str) -> str:
    """Return a kind in which rlrun's classes have their public names, independent of modules."""
    return re.sub(r"\brlrun\.memory\.(?:[a-z_]+\.)+", "rlrun.memory.", kind)


def _parts(table: Recorder) -> dict[str, Stateful]:
    parts: dict[str, Stateful] = {f"sparse {name}": part for name, part in table.storage.sparse.items()}
    return parts | {"index": table.index, "tags": table.tags, "sampler": table.sampler, "ejector": table.ejector}


def _state(table: Recorder) -> dict[str, Any]:
    return {name: part.state_dict() for name, part in _parts(table).items()}


def _load(table: Recorder, state: Mapping[str, Any]) -> None:
    for name, part in _parts(table).items():
        part.load_state_dict(state[name])


def _note(file: ZipFile, path: Path) -> dict[str, Any]:
    note = archive.read_json(file, "table.json", path)
    if note.get("kind") != KIND:
        raise RequestError(f"{path} is no stored memory: it is a '{note.get('kind')}'; {archive.WANTED}")
    if note.get("format") != FORMAT:
        raise RequestError(f"{path} has format {note.get('format')}; this version of rlrun reads {FORMAT}")
    try:
        table = note["table"]
        if operator.index(note["rows"]) < 0 or not isinstance(table["tags"], list):
            raise ValueError
        "".join(table["tags"])
        table |= {name: _exported(table[name]) for name in KINDS}
        for shape, dtype in table["columns"].values():
            if np.empty((0, *shape), np.sctypeDict[dtype]).dtype.kind not in "biufc":
                raise ValueError
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RequestError(f"{path} is damaged: table.json does not describe a table") from error
    return note


def _columns(file: ZipFile, note: Mapping[str, Any], path: Path) -> dict[str, ArrayMember]:
    """Open the columns, and check their shapes and types against the file's description."""
    members = {}
    for name, (shape, dtype) in note["table"]["columns"].items():
        member = members[name] = ArrayMember(file, f"columns/{name}.npy", path)
        if (member.shape, member.dtype) != ((note["rows"], *shape), np.dtype(dtype)):
            raise RequestError(f"{path} is damaged: its column '{name}' is not as table.json says")
    return members


def _restore_state(table: Recorder, file: ZipFile, note: Mapping[str, Any], path: Path) -> None:
    """Load the stored state into the table; all checks come before its rows change."""
    members = _columns(file, note, path)
    slots = ArrayMember(file, "slots.npy", path).all()
    if slots.dtype != np.int64 or len(slots) != note["rows"] or (slots < 0).any() or (slots >= table.index.size).any():
        raise RequestError(f"{path} is damaged: slots.npy does not fit the table")
    _require_choices(table, file, note, path)
    before = _state(table)
    try:
        state = storage.merge(safetensors.torch.load(file.read("state.safetensors")), note["state"])
        _load(table, state)
    except Exception as error:  # a forged state may raise anything
        _load(table, before)
        raise RequestError(f"{path} is damaged: its state cannot be taken back: {error}") from error
    for name, member in members.items():
        begin = 0
        for piece in member.pieces():
            table.storage.put(name, slots[begin : begin + len(piece)], piece)
            begin += len(piece)


def _require_choices(table: Recorder, file: ZipFile, note: Mapping[str, Any], path: Path) -> None:
    """Refuse actions that the table's environment does not have."""
    for name, member in _columns(file, note, path).items():
        column = table.storage.columns[name]
        for piece in member.pieces() if column.choices else ():
            column.require_choices(piece, str(path))


def _episodes(file: ZipFile, note: Mapping[str, Any], path: Path) -> Iterator[Episode]:
    """Yield the episodes one by one; those without a whole transition are left out."""
    lengths = ArrayMember(file, "episodes.npy", path).all()
    if lengths.ndim != 2 or lengths.shape[1] != 2 or (lengths < 0).any() or lengths[:, 0].sum() != note["rows"]:
        raise RequestError(f"{path} is damaged: episodes.npy does not fit the rows")
    members = _columns(file, note, path)
    tags = {name: ArrayMember(file, f"tags/{name}.npy", path).all() for name in note["table"]["tags"]}
    for number, (length, is_open) in enumerate(lengths.tolist()):
        row = {name: member.take(length) for name, member in members.items()}
        if length > 1:
            yield Episode.of(row, bool(is_open), {name: values[number] for name, values in tags.items()})

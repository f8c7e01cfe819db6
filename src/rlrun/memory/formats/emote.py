"""Memories of Emote on disk, in its version 1: a zip of arrays without pickle.

    version                  "1"
    configuration.json       kinds of sampler and ejector, length_key, maxlen, ids, columns, part_keys
    <key>.npy                the values of all episodes, one after another
    <key>.ranges.npy         (id, start, length) of each episode in it

An episode of L steps has L actions and rewards and L + 1 observations; a tag has one value. Emote writes
no `terminated`: the tag `terminal` is 1 where an episode was cut off, and without it every episode ended.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZipFile

import numpy as np

from rlrun.core.errors import RequestError
from rlrun.core.spaces import nest
from rlrun.core.typing import Array
from rlrun.memory.formats import archive
from rlrun.memory.table.episodes import Episode, Stored
from rlrun.memory.table.table import Table

VERSION = "1"
NAMES = {"actions": "action", "rewards": "reward"}  # Emote's names -> ours; others are the same
OURS = {"action": "actions", "reward": "rewards", "observation": "obs"}
TERMINAL = "terminal"


class Part(NamedTuple):
    """One key of the file; `start` and `length` [E] in the order of the ids."""

    data: Array  # [rows, …]
    start: Array
    length: Array

    def of(self, episode: int) -> Array:
        return self.data[self.start[episode] : self.start[episode] + self.length[episode]]


def read(path: Path | str) -> list[Episode]:
    """Return the episodes of a memory that Emote stored as V1, oldest first.

    `actions` is `action`, `rewards` is `reward`, and every key with one row more an episode is a part of `observation`.
    Episodes count as terminated if the file does not record how they ended.

    Raises:
        RequestError: the file is missing, damaged or a pickle, or its ranges contradict each other.
    """
    path = Path(path)
    with archive.read(path) as file:
        if "version" not in file.namelist():
            raise RequestError(f"{path} is no memory of Emote's V1: it has no member 'version'")
        version = file.read("version").decode("ascii", "replace").strip()
        if version != VERSION:
            raise RequestError(
                f"{path} is a memory of Emote's version {version}; this version of rlrun reads {VERSION}"
            )
        about = archive.read_json(file, "configuration.json", path)
        try:
            parts = {key: _part(file, key, about["ids"], path) for key in about["part_keys"]}
            return list(_episodes(about, parts, path))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            what = f"there is no {error}" if isinstance(error, KeyError) else error
            raise RequestError(f"{path} is damaged: {what}") from error


def _part(file: ZipFile, key: str, ids: list[int], path: Path) -> Part:
    """Return one key, after a check that the ranges of its ids are inside its rows."""
    data = archive.ArrayMember(file, f"{key}.npy", path).all()
    ranges = archive.ArrayMember(file, f"{key}.ranges.npy", path).all().astype(np.int64)
    row_of = {number: row for row, number in enumerate(ranges[:, 0].tolist())}
    start, length = ranges[[row_of[number] for number in ids], 1:].T
    outside = (start < 0) | (length < 0) | (length > len(data) - start.clip(0))
    if outside.any() or length.sum() > len(data) or (len(data) and not data.nbytes):
        raise RequestError(f"{path} is damaged: {key}.ranges.npy has ranges that overlap or leave its {len(data)} rows")
    return Part(data, start, length)


def _episodes(about: Mapping[str, Any], parts: Mapping[str, Part], path: Path) -> Iterator[Episode]:
    rows = parts[about["length_key"]].length
    tag_keys = {entry[0] for entry in about["columns"] if entry[1:2] == ["TagColumn"]}
    more = {key: _rows_more(key, part, rows, key in tag_keys, about["ids"], path) for key, part in parts.items()}
    for number, length in enumerate(rows.tolist()):
        if length == 0:
            continue
        values = {key: part.of(number) for key, part in parts.items()}
        row = {NAMES.get(key, key): values[key] for key, rest in more.items() if rest == 0}
        observed = {f"observation.{key}": values[key] for key, rest in more.items() if rest == 1}
        tags = {key: values[key][0] for key, rest in more.items() if rest is None}
        row = _with_flags(row, tags, length) | {name: leaf[:-1] for name, leaf in observed.items()}
        last = nest({name: leaf[-1] for name, leaf in observed.items()}).get("observation")
        yield Episode(nest(row), last, tags)


def _with_flags(row: dict[str, Array], tags: dict[str, Any], length: int) -> dict[str, Array]:
    """Return a row with `terminated` and `truncated` in place of Emote's columns and tags."""
    over = np.arange(length) == length - 1
    masks, ends = row.pop("masks", None), row.pop("dones", None)
    cut_off = np.zeros(length, np.bool_)
    if TERMINAL in tags:
        cut_off = over & bool(np.ravel(tags.pop(TERMINAL))[0])
    elif masks is not None:  # 0 where the episode ended by itself
        cut_off = over & (masks.reshape(length) != 0)
    elif ends is not None:
        cut_off = over & (ends.reshape(length) == 0)
    return {"terminated": over & ~cut_off, "truncated": cut_off, **row}


def _rows_more(key: str, part: Part, rows: Array, tag: bool, ids: list[int], path: Path) -> int | None:
    """Return the number of rows of a key in each episode minus its steps; None for a tag."""
    if tag:
        if (part.length != 1).any():
            raise RequestError(f"{path} is damaged: the tag '{key}' has more or less than one value an episode")
        return None
    more = part.length - rows
    for candidate in (0, 1):
        if (more == candidate).all():
            return candidate
    number = int(np.flatnonzero((more < 0) | (more > 1) | (more != more[0]))[0])
    raise RequestError(
        f"{path} is damaged: '{key}' has {part.length[number]} rows in episode {ids[number]} of "
        f"{rows[number]} steps; wanted as many, or one more in every episode"
    )


def write(table: Table, path: Path | str, *, public: bool = False) -> None:
    """Store a table as a V1 file that Emote restores; the tag `terminal` marks episodes that were cut off.

    `action` is `actions`, `reward` is `rewards`, the only observation is `obs`. The parts of a Dict observation keep
    their names.

    Args:
        table: to store; open episodes are stored as cut off.
        path: the file; Emote appends `.zip` to the name that it loads.
        public: readable by everybody on this machine.

    Raises:
        RlrunError: the disk does not take it.
    """
    stored = Stored.of(table)
    leaves = [leaf for leaf in stored.columns if leaf not in ("terminated", "truncated")]
    keys = {leaf: OURS.get(leaf) or leaf.removeprefix("observation.") for leaf in leaves}
    ids, rows = np.arange(len(stored)), stored.rows
    with archive.create(Path(path), public=public) as file:
        file.writestr("version", VERSION)
        archive.write_json(file, "configuration.json", _about(stored, keys))
        for leaf, key in keys.items():
            observed = leaf.split(".")[0] == "observation"
            length = rows + observed
            shape = stored.shape(leaf) or (1,)  # Emote has no scalars
            pieces = (piece.reshape(len(piece), *shape) for piece in stored.pieces(leaf, rows=not observed))
            archive.write_array(file, f"{key}.npy", (int(length.sum()), *shape), stored.columns[leaf].dtype, pieces)
            _write_ranges(file, key, ids, length)
        tags = {**stored.tags, TERMINAL: stored.cut_off().astype(np.float32)}
        for name, values in tags.items():
            archive.write_array(file, f"{name}.npy", values.shape, values.dtype, [values])
            _write_ranges(file, name, ids, np.ones_like(ids))


def _write_ranges(file: ZipFile, key: str, ids: Array, length: Array) -> None:
    ranges = np.stack([ids, np.cumsum(length) - length, length], 1)
    archive.write_array(file, f"{key}.ranges.npy", ranges.shape, np.int64, [ranges])


def _about(stored: Stored, keys: Mapping[str, str]) -> dict[str, Any]:
    ids = list(range(len(stored)))
    shapes = {leaf: list(stored.shape(leaf) or (1,)) for leaf in keys}
    columns: list[Any] = [
        [key, "Column", {"shape": shapes[leaf], "dtype": stored.columns[leaf].dtype}] for leaf, key in keys.items()
    ]
    tags = {**stored.tags, TERMINAL: np.zeros(0, np.float32)}
    columns += [[name, "TagColumn", {"shape": list(v.shape[1:]), "dtype": v.dtype.name}] for name, v in tags.items()]
    actions = [key for leaf, key in keys.items() if leaf.split(".")[0] == "action"]
    rows = [key for leaf, key in keys.items() if leaf.split(".")[0] != "observation"]
    return {
        "ejector_type": "FifoEjectionStrategy",
        "sampler_type": "UniformSampleStrategy",
        "length_key": [*actions, *rows][0],
        "maxlen": stored.table.index.size,
        "ids": ids,
        # Emote's first-in-first-out ejector reads its state, not the data
        "ejector_state": {"identities": ids, "sequence_lengths": [[i, n] for i, n in enumerate(stored.rows.tolist())]},
        "columns": columns,
        "part_keys": [*keys.values(), *tags],
    }

"""Sources of episodes: files of rlrun and of Emote, datasets of Minari."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rlrun.core.errors import ConfigError, RequestError
from rlrun.core.spaces import (
    ACTION_MASK,
    Box,
    Composite,
    Discrete,
    Leaf,
    MultiDiscrete,
    Space,
    Spaces,
    describe,
    flat,
    laid_out,
    leaves,
    nest,
)
from rlrun.core.typing import Array
from rlrun.env.descriptions import RecordedSpaces
from rlrun.memory.formats import archive, emote, minari, table_file
from rlrun.memory.table.columns import Column
from rlrun.memory.table.episodes import Episode, Stored, add_all, fit, newest
from rlrun.memory.table.table import Table

_messages = logging.getLogger("rlrun")
MINARI = "minari:"
EMPTY = "loader.dataset: there are no rows in it"


def import_rows(table: Table, source: str, *, append: bool = False, limit: int | None = None) -> bool:
    """Fill a table from a file that rlrun or Emote (V1) stored, or from `minari:DATASET`.

    Args:
        table: its rows are replaced.
        source: the file or dataset.
        append: keep the rows of the table, and add to them.
        limit: rows of the newest whole episodes, at most; None = all.

    Returns:
        True if the table has exactly the stored state, with that of sampler and ejector.

    Raises:
        RequestError: the source is missing or damaged, or does not fit; the table is unchanged.
    """
    episodes = episodes_in(source)
    if episodes is None:
        return table_file.restore(table, Path(source).expanduser(), append=append, limit=limit)
    add_all(table, [fit(table, episode, source) for episode in newest(episodes, limit, source)], append=append)
    return False


def episodes_in(source: str) -> list[Episode] | None:
    """Return the episodes of a file that Emote (V1) stored, or of `minari:DATASET`; None for any other file."""
    if source.startswith(MINARI):
        return minari.read(source.removeprefix(MINARI))
    path = Path(source).expanduser()
    with archive.read(path, verify=False) as file:
        is_v1 = {"version", "configuration.json"} <= set(file.namelist())
    return emote.read(path) if is_v1 else None


def table_of(source: str) -> Table:
    """Return a table with the columns and rows of a stored memory: a file, or `minari:DATASET`.

    Raises:
        RequestError: it is missing or damaged.
    """
    episodes = episodes_in(source)
    if episodes is None:
        path = Path(source).expanduser()
        about = table_file.about(path)
        stored = about["table"]["columns"].items()
        table = Table(
            length=about["rows"], columns={name: Column(name, tuple(shape), dtype) for name, (shape, dtype) in stored}
        )
        table_file.restore(table, path)
        return table
    if not episodes:
        raise ConfigError(EMPTY)
    columns = {
        name: Column(name, leaf.shape[1:], "float32" if leaf.dtype == np.float64 else leaf.dtype.name)
        for name, leaf in flat(episodes[0].row).items()
    }
    table = Table(length=sum(len(episode) + 1 for episode in episodes), columns=columns)
    add_all(table, episodes, append=False)
    return table


PIXELS = "uint8"


def spaces_in(source: str | Sequence[str], *, layout: str | Mapping[str, str] = "auto") -> Spaces:
    """Return the spaces of the rows in a file, or of `minari:DATASET`, or of several that agree.

    A file of `memory.export` and a dataset of Minari record the spaces of their environment. For other sources floats
    have no bounds, actions are between -1 and 1, bytes from 0 to 255, and negative whole numbers are plain numbers. The
    largest stored choice of all sources sets the number of choices; a warning names such observations. `layout` is that
    of images, as `rlrun.core.spaces.laid_out` takes it.

    Raises:
        RequestError: a source is missing or damaged, lacks observations or actions, or differs from the first one.
    """
    first, *rest = [source] if isinstance(source, str) else source
    common = _spaces_of(first)
    for later in rest:
        here = _spaces_of(later)
        if common.rewards != here.rewards:
            counts = [spaces.rewards or "one" for spaces in (here, common)]
            raise RequestError(f"{later}: it has {counts[0]} rewards a step, and {first} has {counts[1]}")
        both = {}
        for name in ("observation", "action"):
            known, same = getattr(common, name), getattr(here, name)
            both[name] = _joined(known, same)
            if both[name] is None:
                difference = f"{name}s are {describe(same)}, and those of {first} are {describe(known)}"
                raise RequestError(f"{later}: its {difference}; what one run learns from has the same spaces")
        common = Spaces(both["observation"], both["action"], common.rewards)
    return replace(common, observation=laid_out(common.observation, layout))


def _spaces_of(source: str) -> Spaces:
    """Return the spaces of one source: the recorded ones if they fit its rows, else those derived from the rows."""
    table = table_of(source)
    derived, recorded = _derived(table, source), _recorded(source)
    roles = ("observation", "action")
    if recorded is not None and all(_covers(getattr(recorded, role), getattr(derived, role)) for role in roles):
        return Spaces(recorded.observation, recorded.action, derived.rewards)
    for path, leaf in leaves(derived.observation):
        if not isinstance(leaf, Box) or np.dtype(leaf.dtype).kind != "f":
            bounds = "bytes from 0 to 255" if leaf.dtype == PIXELS else f"{describe(leaf)} without bounds"
            what = bounds if isinstance(leaf, Box) else f"{describe(leaf)}, by its largest number"
            name = f"observation.{path}" if path else "observation"
            _messages.warning("%s records no spaces: its %s is taken for %s", source, name, what)
    return derived


def _recorded(source: str) -> Spaces | None:
    """Return the spaces that a file of rlrun records, or a dataset of Minari; None for others."""
    path = Path(source).expanduser()
    if source.startswith(MINARI):
        return minari.spaces_of(source.removeprefix(MINARI))
    if not table_file.is_memory(path) or (known := table_file.about(path).get("spaces")) is None:
        return None
    return RecordedSpaces(known, source).spaces


def _covers(space: Space, derived: Space) -> bool:
    """Return True if a space has the leaves of the rows, and at least their numbers of choices."""
    if isinstance(space, Composite) or isinstance(derived, Composite):
        parts = [getattr(each, "parts", {}) for each in (space, derived)]
        return parts[0].keys() == parts[1].keys() != set() and all(_covers(parts[0][k], parts[1][k]) for k in parts[0])
    if space.shape != derived.shape:
        return False
    if isinstance(space, Box):  # whole numbers with bounds look like choices
        return space.dtype == derived.dtype if isinstance(derived, Box) else np.dtype(space.dtype).kind in "biu"
    if type(space) is not type(derived):
        return False
    return bool(np.all(_choices(space) >= _choices(derived)))


def _choices(space: Any) -> Array:
    return np.asarray(space.n if isinstance(space, Discrete) else space.nvec)


def _derived(table: Table, source: str) -> Spaces:
    """Return the spaces derived from the rows of a source."""
    stored = Stored.of(table)
    rows = stored.row_slots()
    columns: dict[str, Any] = {}
    for name in table.storage.columns:
        root = name.partition(".")[0]
        if root in ("observation", "action") and len(rows):
            columns[name] = leaf_of(stored.leaf(name, rows), action=root == "action")
    spaces = {name: space_of(tree) for name, tree in nest(columns).items()}
    if len(spaces) < 2:
        raise RequestError(f"{source}: it holds {', '.join(spaces) or 'no rows'}; wanted observations and actions")
    action_mask = getattr(spaces["observation"], "parts", {}).get(ACTION_MASK)
    if isinstance(action_mask, Leaf) and isinstance(spaces["action"], Discrete):  # it counts choices never taken, too
        spaces["action"] = Discrete(max(int(np.prod(action_mask.shape)), int(spaces["action"].n)))
    rewards = table.storage.columns["reward"].shape if "reward" in table.storage.columns else ()
    return Spaces(spaces["observation"], spaces["action"], *rewards)


def _joined(first: Space, second: Space) -> Any:
    """Return the space that includes both, with the larger number of choices; None if there is none."""
    if isinstance(first, Composite) and isinstance(second, Composite):
        if first.parts.keys() != second.parts.keys():
            return None
        parts = {name: _joined(part, second.parts[name]) for name, part in first.parts.items()}
        return None if None in parts.values() else Composite(parts)
    if type(first) is not type(second) or isinstance(first, Composite) or isinstance(second, Composite):
        return None
    if (first.shape, first.dtype) != (second.shape, second.dtype):
        return None
    if isinstance(first, Discrete) and isinstance(second, Discrete):
        return Discrete(max(first.n, second.n), first.start)
    if isinstance(first, MultiDiscrete) and isinstance(second, MultiDiscrete):
        return MultiDiscrete(np.maximum(first.nvec, second.nvec), first.start)
    return first


def leaf_of(values: Array, *, action: bool = False) -> Leaf:
    """Return the space of the values [R, …] of a column; `action`: floats are between -1 and 1."""
    shape, kind = values.shape[1:], values.dtype
    if kind.name == PIXELS:
        return Box(shape, np.zeros(shape, kind), np.full(shape, 255, kind), PIXELS)
    if np.issubdtype(kind, np.floating):
        bound = np.ones(shape, np.float32) if action else np.full(shape, np.inf, np.float32)
        return Box(shape, -bound, bound)
    if (values < 0).any() and not action:  # no choices
        limits = np.iinfo(kind)
        return Box(shape, np.full(shape, limits.min, kind), np.full(shape, limits.max, kind), kind.name)
    largest = values.max(0).astype(np.int64)
    return MultiDiscrete(largest + 1, np.zeros_like(largest)) if shape else Discrete(int(largest) + 1)


def space_of(tree: Any) -> Space:
    """Return the space of a tree of leaves."""
    return Composite({name: space_of(part) for name, part in tree.items()}) if isinstance(tree, dict) else tree

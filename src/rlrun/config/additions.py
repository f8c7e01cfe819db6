"""Conflicts between packaged additions: both set one key to different values, or one needs an optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from rlrun.config.files import read_yaml
from rlrun.config.interpolation import Path, dotted, is_there, leaves, link_of, plain
from rlrun.config.layers import Composed, Layer
from rlrun.config.places import packaged_dir
from rlrun.core.errors import ConfigError, shown

FOLDER = "with/"  # of a packaged addition


def require_compatible(composed: Composed) -> None:
    """Refuse two packaged additions that give one key different values, unless something later sets that key.

    An addition may override values of an addition in its own defaults list.

    Raises: ConfigError naming both, the key and the way out.
    """
    tree = plain(composed.config)
    ours = [(place, layer) for place, layer in enumerate(composed.layers) if _name(layer)]
    for (_, first), (place, second) in combinations(ours, 2):
        later = [layer.content for layer in composed.layers[place + 1 :] if not _name(layer)]
        clashes = [clash for clash in _clashes(first.content, second.content) if not _settled(clash[0], tree, later)]
        names = _name(first), _name(second)
        if not clashes or names[0] in _included(names[1]) or names[1] in _included(names[0]):
            continue
        for path, *values in clashes:
            if path[-1] == "_target_" or any(_is_part(tree, path, value) for value in values):
                place_of = dotted(path[:-1] if path[-1] == "_target_" else path)
                way_out = f"both set {place_of}; leave one of them out"
                raise ConfigError(f"+with={names[0]} and +with={names[1]} do not go together: {way_out}")
        path, *values = clashes[0]
        given = " and ".join(map(shown, values))
        raise ConfigError(
            f"{dotted(path)}: +with={names[0]} and +with={names[1]} give {given}; {dotted(path)}=… says which counts"
        )


def require_optimizer(composed: Composed) -> None:
    """Refuse a packaged addition whose networks need the run's optimizer, if `optimizer` is null.

    Raises: ConfigError naming the addition and the algorithm.
    """
    if plain(composed.config).get("optimizer", "") is not None:
        return
    for layer in filter(_name, composed.layers):
        if any(value == "${optimizer}" for _, value in leaves(layer.content)):
            algorithm = composed.choices.get("algorithm")
            reason = f"its networks learn, and algorithm={algorithm} trains nothing (optimizer: null)"
            raise ConfigError(f"+with={_name(layer)}: {reason}; leave it out, or choose another algorithm")


def _name(layer: Layer) -> str:
    """Return the name of a packaged addition; "" for other layers."""
    ours = layer.packaged and layer.config_path.startswith(FOLDER)
    return layer.config_path.removeprefix(FOLDER) if ours else ""


def _clashes(first: Any, second: Any, path: Path = ()) -> Iterator[tuple[Path, Any, Any]]:
    """Yield each path at which two trees have different values, with both values; empty blocks do not count."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        for key in (key for key in first if key in second):
            yield from _clashes(first[key], second[key], (*path, key))
    elif first != second:
        yield path, first, second


def _settled(path: Path, tree: Any, later: Sequence[Any]) -> bool:
    """Return True if the config no longer has a path, or a later tree sets it or a block that contains it."""
    return not is_there(tree, path) or any(
        path[: len(leaf)] == leaf for content in later for leaf, value in leaves(content) if value != {}
    )


def _is_part(tree: Any, path: Path, value: Any) -> bool:
    """Return True if a value is a block of keys, or a link to a part or to an attribute of one."""
    if isinstance(value, Mapping):
        return True
    link = link_of(tree, path, value)
    return link is not None and (not is_there(tree, link) or is_there(tree, (*link, "_target_")))


def _included(name: str) -> set[str]:
    """Return all additions that the defaults list of an addition includes, also indirectly."""
    file = packaged_dir() / FOLDER / f"{name}.yaml"
    entries = [entry for entry in read_yaml(file, file.name).get("defaults", ()) if isinstance(entry, str)]
    names = {entry.partition("@")[0].rpartition("/")[2] for entry in entries} - {"_self_"}
    return names.union(*map(_included, names))

"""Overrides, a user's files and saved configs with today's names, by `renames.yaml`.

Names inside an object of a user's own class are that class's affair and stay as they are.
"""

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from rlrun.config.interpolation import Path as Keys
from rlrun.config.interpolation import children, dotted, leaves, split
from rlrun.core import renames
from rlrun.core.errors import printable
from rlrun.core.renames import group, last, removed, table, target

LOGGER = logging.getLogger(__name__)
_LINK = re.compile(r"(\$\{\s*)(\.*)([\w\[\]][\w.\[\]]*)(\s*\})")
_DEFAULT = re.compile(r"((?:override |optional )*/?)([^@]+)(.*)")
_REMOVED = "%s%s no longer exists and is ignored: %s"
_OWN = ("env.kwargs", "env.reset_options")  # what a user's environment calls its arguments


@cache
def advise(place: str, before: str, now: str, message: str = "%s%s is called %s now") -> None:
    """Log once that a name has changed, or a key is ignored."""
    LOGGER.warning(message, f"{place}: " if place else "", printable(before), printable(now))


def choices(overrides: Sequence[str]) -> list[str]:
    """Return overrides with today's names of groups; advise of what changed."""
    renamed = renames.choices(overrides)
    for before, now in zip(overrides, renamed, strict=True):
        if before != now:
            advise("", before, now or "preset=NAME")
    return [now for now in renamed if now is not None]


def option(name: str, value: Any, exists: Callable[[str], bool], place: str = "") -> Any:
    """Return what is chosen from a group with today's names of options.

    Args:
        name: the group.
        value: an option, a list of options, or None.
        exists: returns True if there is a file of that name; it takes precedence over a rename.
        place: the file, for the advice.
    """
    if isinstance(value, list):
        return [option(name, entry, exists, place) for entry in value]
    now = table("options").get(f"{name}/{value}")
    if now is None or exists(f"{name}/{value}"):
        return value
    advise(place, f"{name}={value}", f"{name}={now}")
    return now


def defaults(items: list[Any], exists: Callable[[str], bool], place: str) -> list[Any]:
    """Return a defaults list with today's names of groups and options; see `option`."""
    return [_default(item, exists, place) for item in items]


def _default(item: Any, exists: Callable[[str], bool], place: str) -> Any:
    if isinstance(item, str) and "/" in item:
        before, _, chosen = item.rpartition("/")
        now: Any = f"{group(before)}/{option(group(before), chosen, exists, place)}"
    elif isinstance(item, Mapping) and len(item) == 1:
        (line, chosen), *_ = item.items()
        match = _DEFAULT.fullmatch(str(line))
        name = group(match[2], chosen) if match else ""
        now = {f"{match[1]}{name}{match[3]}": option(name, chosen, exists, place)} if match else item
    else:
        return item
    if [*now] != [*item]:
        advise(place, str(item), str(now))
    return now


def tree(node: Any, place: str, configs: Iterable[Any] = (), *, brief: bool = False) -> Any:
    """Return a config with today's names of keys, classes and values; advise of each that changed.

    Args:
        node: plain dicts, lists and scalars from the top of the config.
        place: the file, for the advice.
        configs: further configs, which may say what class an object is of.
        brief: say in one line how many changed, as of the config of a run.
    """
    renaming = _Renaming([*configs, node])
    result = renaming.of(node)
    changes = [*renaming.changes.items()]
    more = f", {len(changes) - 1} more" if brief and changes[1:] else ""
    for before, now in changes[:1] if brief else changes:
        advise(place, before, f"{now}{more}")
    renaming.advise_removed(place)
    return result


class _Renaming:
    """The names of one config as today's.

    Attributes:
        changes: what changed, before -> now.
        removed: keys that were dropped, with what replaces them.
    """

    def __init__(self, configs: Iterable[Any]) -> None:
        self.changes: dict[str, str] = {}
        self.removed: dict[str, str] = {}
        self._classes = {
            path[:-1]: value for config in configs for path, value in leaves(config) if path[-1:] == ("_target_",)
        }

    def of(self, node: Any, here: Keys = ()) -> Any:
        if dotted(here) in _OWN:
            return node
        if isinstance(node, Mapping):
            kept = {str(name): entry for name, entry in node.items() if not self.drops((*here, str(name)))}
            return {self.path((*here, name))[-1]: self.of(entry, (*here, name)) for name, entry in kept.items()}
        if isinstance(node, list):
            return [self.of(entry, (*here, name)) for name, entry in children(node)]
        return self._value(node, here) if isinstance(node, str) else node

    def drops(self, path: Keys) -> bool:
        """Return True if a key was removed, and note it."""
        now = removed(path)
        if now is None or not self._ours(path[:-1]):
            return False
        self.removed[dotted(path)] = now
        return True

    def advise_removed(self, place: str) -> None:
        """Log in one line which keys are ignored."""
        if self.removed:
            (first, now), *rest = self.removed.items()
            advise(place, f"{first}{f', {len(rest)} more' if rest else ''}", now, _REMOVED)

    def path(self, path: Keys) -> Keys:
        """Return the path of a key with today's names, and note what changed."""
        now = tuple(last(path[: end + 1]) if self._ours(path[:end]) else path[end] for end in range(len(path)))
        if now[-1:] != path[-1:]:
            self.changes[dotted(path)] = dotted(now)
        return now

    def _ours(self, here: Keys) -> bool:
        """Return True if a node is not inside an object of a user's own class."""
        classes = (self._classes.get(here[:length]) for length in range(len(here), -1, -1))
        return str(next(filter(None, classes), "rlrun.")).startswith("rlrun.")

    def _value(self, text: str, here: Keys) -> Any:
        if here[-1:] == ("_target_",):
            now = target(text)
        else:
            key = here[:-1] if here[-1:] and here[-1].isdecimal() else here  # of a list
            now = _value(key, text) if key and self._ours(key[:-1]) else text
        if now != text:
            name = f"{last(here)}=" if here[-1:] != ("_target_",) else ""
            self.changes[f"{name}{text}"] = f"{name}{now}"
        if isinstance(now, dict):  # several names that had a name of their own
            return now
        return _LINK.sub(lambda match: f"{match[1]}{match[2]}{self._link(match, here)}{match[4]}", now)

    def _link(self, match: re.Match[str], here: Keys) -> str:
        base = here[: -len(match[2])] if match[2] else ()
        path = split(match[3])
        now = self.path((*base, *path))[len(base) :]
        return match[3] if now == path else dotted(now)


def _value(key: Keys, value: Any) -> Any:
    return table("values").get(last(key), {}).get(value, value) if isinstance(value, str) else value


def setting(key: str, value: Any, configs: Sequence[Any]) -> tuple[str, Any] | None:
    """Return the key and value of an override with today's names; None, with advice, if the key was removed.

    Args:
        key: the key.
        value: what it is set to.
        configs: the config, and what overrides add, which may say what class an object is of. A key is renamed only
            if the config has today's name and lacks the earlier one.
    """
    config, path = configs[0], split(key)
    if (instead := removed(path)) and not _has(config, path) and _Renaming(configs).drops(path):
        advise("", key, instead, _REMOVED)
        return None
    now = tuple(last(path[: end + 1]) for end in range(len(path)))
    changed = max((end for end in range(len(path)) if now[end] != path[end]), default=-1) + 1  # what follows may be new
    if changed and not _has(config, path[:changed]) and _has(config, now[:changed]):
        key, path = dotted(now), now
    if path[-1:] == ("_target_",) and isinstance(value, str):
        value = target(value)
    elif isinstance(value, str | list):
        value = [_value(path, entry) for entry in value] if isinstance(value, list) else _value(path, value)
    elif isinstance(value, Mapping):
        renaming = _Renaming([*configs, nested(path, value)])
        tree = renaming.of(nested(path, value))
        above = {dotted(path[: end + 1]) for end in range(len(path))}
        for before, today in renaming.changes.items():
            if before not in above:
                advise("", before, today)
        renaming.advise_removed("")
        for _ in path:
            (tree,) = tree.values()
        value = tree
    return key, value


def nested(path: Keys, value: Any) -> Any:
    """Return a config that has only this value at a path."""
    for name in reversed(path):
        value = {name: value}
    return value


def _has(node: Any, path: Keys) -> bool:
    return not path or (path[0] in dict(children(node)) and _has(dict(children(node))[path[0]], path[1:]))

"""Overrides, a user's files and saved configs with today's names, by `renames.yaml`."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from rlrun.config.tree import Path as Keys
from rlrun.config.tree import dotted, split
from rlrun.core.renames import group, key, table, target

LOGGER = logging.getLogger(__name__)
_LINK = re.compile(r"(\$\{\s*\.*)([\w.\[\]]+)(\s*\})")
_OVERRIDE = re.compile(r"([+~]*)([^=@]+)([^=]*)(?:(=)(.*))?", re.DOTALL)
_DEFAULT = re.compile(r"((?:override |optional )*/?)([^@]+)(.*)")
_OWN = ("env.kwargs", "env.reset_options")  # what a user's environment calls its arguments


@cache
def _advise(place: str, before: str, now: str) -> None:
    LOGGER.warning("%s%s is called %s now", f"{place}: " if place else "", before, now)


def override(text: str) -> str:
    """Return an override with today's names; advise of what changed."""
    match = _OVERRIDE.fullmatch(text)
    if match is None:
        return text
    sign, name, package, _, value = match.groups()
    path = key(split(name))
    now = group(name) if group(name) != name else dotted(path) if path != split(name) else name
    renamed = f"{sign}{now}{package}" + ("" if value is None else f"={_choice(now, path[-1:], value)}")
    if renamed != text:
        _advise("", text, renamed)
    return renamed


def _choice(name: str, last: Keys, text: str) -> str:
    """Return the value of an override, or the options of a group that it names, with today's names."""
    values = table("values").get(dotted(last), {})
    options = {old.partition("/")[2]: now for old, now in table("options").items() if old.startswith(f"{name}/")}
    return re.sub(r"[\w.]+", lambda match: str({**values, **options}.get(match[0], match[0])), text)


def tree(node: Any, place: str, here: Keys = ()) -> Any:
    """Return a config, or the content of one of its files, with today's names; advise of what changed.

    Args:
        node: plain dicts, lists and scalars.
        place: the file, for the advice.
        here: where the node stands in the config.
    """
    if dotted(here) in _OWN:
        return node
    if isinstance(node, Mapping):
        foreign = isinstance(node.get("_target_"), str) and not node["_target_"].startswith("rlrun.")
        return dict(_entry(name, entry, place, here, foreign) for name, entry in node.items())
    if isinstance(node, list):
        if here == ("defaults",):
            return [_default(item, place) for item in node]
        return [tree(entry, place, (*here, str(index))) for index, entry in enumerate(node)]
    if isinstance(node, str) and "${" in node:
        return _LINK.sub(lambda match: match[1] + dotted(_renamed(split(match[2]), place)) + match[3], node)
    return node


def _renamed(path: Keys, place: str) -> Keys:
    now = key(path)
    if now != path:
        _advise(place, dotted(path), dotted(now))
    return now


def _entry(name: Any, entry: Any, place: str, here: Keys, foreign: bool) -> tuple[Any, Any]:
    path = (*here, str(name))
    now = name if foreign or not isinstance(name, str) else _renamed(path, place)[-1]
    if name == "_target_" and isinstance(entry, str):
        if (renamed := target(entry)) != entry:
            _advise(place, entry, renamed)
        return name, renamed
    if isinstance(entry, str) and entry in (values := table("values").get(now, {})):
        return now, values[entry]
    return now, tree(entry, place, path)


def _default(item: Any, place: str) -> Any:
    """Return a line of a defaults list with today's names."""
    if isinstance(item, str):
        before, _, option = item.rpartition("/")
        now: Any = f"{group(before)}/{_choice(group(before), (), option)}" if before else item
    elif isinstance(item, Mapping) and len(item) == 1:
        (line, chosen), *_ = item.items()
        match = _DEFAULT.fullmatch(str(line))
        assert match is not None
        name = group(match[2])
        options = [_choice(name, (), text) if isinstance(text, str) else text for text in _listed(chosen)]
        now = {f"{match[1]}{name}{match[3]}": options if isinstance(chosen, list) else options[0]}
    else:
        return item
    if now != item:
        _advise(place, str(item), str(now))
    return now


def _listed(chosen: Any) -> list[Any]:
    return chosen if isinstance(chosen, list) else [chosen]

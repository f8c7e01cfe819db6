"""Find one's way in a config whose interpolations are not resolved.

A config is a tree of plain dicts, lists and scalars. `${a.b}` alone in a value is a *link*: it stands
for the node at that path. A path may go on beyond a node with `_target_`; what follows are attributes
of the object that will be built there.
"""

import functools
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

from rlrun.core.errors import ConfigError, did_you_mean, shown

Path: TypeAlias = tuple[str, ...]

_LINK = re.compile(r"\$\{\s*(\.*[^\s.:{}$,'\"][^\s:{}$,'\"]*)\s*\}")
_KEYS = re.compile(r"\$\{\s*oc\.dict\.(?:keys|values)\s*:\s*([^\s:{}$,'\"]+)")
_SELECT = re.compile(r"\$\{\s*oc\.select\s*:\s*([^\s:{}$,'\"]+)")
_NOW = re.compile(r"\$\{\s*now\s*:\s*([^{}]*)\}")
_ABSENT: Any = object()
_MAPPINGS = (dict, Mapping)  # the first one spares a search among abstract classes


class Location(NamedTuple):
    """Where a path leads."""

    path: Path  # of the node, free of links
    node: Any
    beyond: Path  # attributes of the object that is built from the node
    links: tuple[Path, ...]  # the places of the links that were followed


def dotted(path: Path) -> str:
    """Write a path as people do."""
    return ".".join(path)


@functools.lru_cache(4096)
def split(text: str) -> Path:
    """Read `a.b`, `a[0]` or `a["b"]`; below `init` are names of parts, which keep their dots."""
    if text.startswith("init."):
        return "init", text.removeprefix("init.")
    return tuple(part.strip("'\"") for part in re.split(r"[.\[\]]+", text) if part)


def nested(path: Path, value: Any) -> Any:
    """Return a config that has only this value at a path."""
    for name in reversed(path):
        value = {name: value}
    return value


def plain(config: Any) -> Any:
    """Return a config as plain dicts and lists, interpolations unresolved.

    What `OmegaConf.to_container` returns, in a tenth of its time; composition calls it often.
    """
    if isinstance(config, (dict, list)):
        return config
    value = config._value()
    if isinstance(value, dict):
        return {key: plain(node) for key, node in value.items()}
    return [plain(node) for node in value] if isinstance(value, list) else value


def children(node: Any) -> Iterator[tuple[str, Any]]:
    """Yield the entries of a dict or list by key; nothing for a scalar."""
    if isinstance(node, _MAPPINGS):
        yield from ((str(key), child) for key, child in node.items())
    elif isinstance(node, list):
        yield from ((str(index), child) for index, child in enumerate(node))


def child(node: Any, key: str) -> Any:
    """Return one entry of a dict or list, or the absent object."""
    if isinstance(node, _MAPPINGS):
        return node[key] if key in node else dict(children(node)).get(key, _ABSENT)
    if isinstance(node, list) and re.fullmatch(r"-?\d+", key) and -len(node) <= int(key) < len(node):
        return node[int(key)]
    return _ABSENT


def is_there(tree: Any, path: Path) -> bool:
    """Return True if a tree has a node at a path, which no link leads to."""
    return functools.reduce(child, path, tree) is not _ABSENT


def link_of(tree: Any, here: Path, value: Any) -> Path | None:
    """Return the absolute path to which a value is a link, or None where it is none."""
    if not isinstance(value, str) or not value.startswith("${"):
        return None
    if value.count("${") > 1 and value.endswith("}"):  # ${networks.${which}}: the inner ones are scalars
        inner = re.sub(_LINK, lambda match: str(locate(tree, absolute(match[1], here), referrer=here).node), value[2:])
        value = "${" + inner
    match = _LINK.fullmatch(value)
    return absolute(match[1], here) if match else None


def mentions(value: Any, here: Path, tree: Any = None) -> list[Path]:
    """Return the absolute paths of all config nodes that a value mentions.

    tree: the config; what `oc.select` does not find there has a default, and is left out.
    """
    if not isinstance(value, str) or "${" not in value:
        return []
    unescaped = re.sub(r"\\\$\{", "", value)
    texts = re.findall(_LINK, unescaped) + re.findall(_KEYS, unescaped)
    chosen = [absolute(text, here) for text in re.findall(_SELECT, unescaped)]
    return [absolute(text, here) for text in texts] + [path for path in chosen if tree is None or _leads(tree, path)]


def _leads(tree: Any, path: Path) -> bool:
    try:
        locate(tree, path)
    except LinkError:
        return False
    return True


def substitute(value: str, here: Path, read: Any) -> str:
    """Replace each `${path}` in a value by what `read` returns for its absolute path."""
    return re.sub(_LINK, lambda match: str(read(absolute(match[1], here))), value)


def fix_time(config: Any, moment: datetime | None = None) -> None:
    """Replace each `${now:FORMAT}` of a config by the time, so that a resumed run has the same text."""
    now, tree = moment or datetime.now(), plain(config)
    if not any(_NOW.search(value) for _, value in texts(tree) if isinstance(value, str)):
        return
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        if isinstance(value, dict | list):
            fix_time(config[key], now)
        elif isinstance(value, str) and _NOW.search(value):
            config[key] = _NOW.sub(lambda match: f"{now:{match[1]}}", value)


def absolute(text: str, here: Path) -> Path:
    """Return the absolute path of an interpolation at `here`; leading dots are relative."""
    dots = len(text) - len(text.lstrip("."))
    if not dots:
        return split(text)
    return here[: len(here) - dots] + split(text)


class LinkError(ConfigError):
    """An interpolation leads nowhere; `place` is the key that has it."""

    def __init__(self, message: str, place: Path = ()) -> None:
        super().__init__(message)
        self.place = place


def locate(tree: Any, path: Path, *, referrer: Path = (), trail: tuple[Path, ...] = ()) -> Location:
    """Follow a path, and every link on the way and at its end.

    Raises: ConfigError, with the place that asked, if it leads nowhere or round in a circle.
    """
    node = tree
    here: Path = ()
    for index, key in enumerate((*path, None)):
        link = link_of(tree, here, node)
        if link is not None:
            if here in trail:
                chain = " -> ".join(map(dotted, [*trail[trail.index(here) :], here]))
                raise ConfigError(f"{dotted(here)}: interpolations go round in a circle: {chain}")
            return locate(tree, link + path[index:], referrer=here, trail=(*trail, here))
        if key is None:
            break
        next_node = child(node, key)
        if next_node is _ABSENT:
            if isinstance(node, _MAPPINGS) and "_target_" in node:
                return Location(here, node, path[index:], trail)
            if here and referrer and not isinstance(node, Mapping | list):
                asked = f"{dotted(referrer)} reads '${{{dotted(path)}}}'"
                raise LinkError(f"{dotted(here)}: wanted keys with values, got {shown(node)}; {asked}", referrer)
            asker = f"{dotted(referrer)}: '${{{dotted(path)}}}' leads nowhere" if referrer else ""
            near = did_you_mean(key, [name for name, _ in children(node)], f"{dotted(here)}." if here else "")
            raise LinkError(f"{asker or f'{dotted(path)}: no such key'}{near}", referrer)
        node, here = next_node, (*here, key)
    return Location(here, node, (), trail)


def leaves(node: Any, here: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Return every scalar, list and empty dict with its path."""
    pairs: list[tuple[Path, Any]] = []
    _gather(node, here, pairs)
    return iter(pairs)


def texts(node: Any, here: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield what `leaves` returns, and in place of a list its entries."""
    for path, value in leaves(node, here):
        if isinstance(value, list):
            for index, entry in enumerate(value):
                yield from texts(entry, (*path, str(index)))
        else:
            yield path, value


def _gather(node: Any, here: Path, pairs: list[tuple[Path, Any]]) -> None:
    if isinstance(node, _MAPPINGS) and node:
        for key, entry in node.items():
            _gather(entry, (*here, str(key)), pairs)
    else:
        pairs.append((here, node))

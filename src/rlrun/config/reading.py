"""Find the keys of a config that a run reads, without building anything."""

import functools
from collections.abc import Container, Iterable, Mapping
from functools import reduce
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlrun.config.files import one_line
from rlrun.config.interpolation import (
    Path,
    child,
    children,
    dotted,
    is_there,
    link_of,
    locate,
    mentions,
    plain,
    split,
    texts,
)
from rlrun.config.schema import SETTINGS, known
from rlrun.core.errors import ConfigError

# Keys that the experiment itself reads (of SETTINGS, the known keys). All others are reached from `trainer`.
ROOTS = (
    "seed",
    "stop",
    "num_envs",
    "evaluation",
    "checkpoint",
    "log",
    "logger",
    "device",
    "threads",
    "precision",
    "compile",
    "expect",
    "init",
    "notes",
    "resolvers",
    "trainer",
)


def reached(config: Any, roots: Iterable[str] = ROOTS) -> dict[Path, Any]:
    """Return every node that is read: the roots, all nodes below, and the targets of interpolations.

    Raises: ConfigError if an interpolation on the way dangles or goes round in a circle.
    """
    tree = plain(config)
    nodes: dict[Path, Any] = {}
    keys = [
        key for root in roots for key in ([f"{root}.{name}" for name in known(root)] if root in SETTINGS else [root])
    ]
    waiting: list[tuple[Path, Path]] = [(split(key), ()) for key in keys if is_there(tree, split(key))]
    while waiting:
        path, referrer = waiting.pop()
        if path in nodes:
            continue
        place = locate(tree, path, referrer=referrer)
        for link in place.links:
            nodes[link] = text = reduce(child, link, tree)
            if text.count("${") > 1:  # ${a.${b}} reads b
                waiting += [(target, link) for target in mentions(text, link, tree)]
        if place.path not in nodes:
            nodes[place.path] = place.node
            waiting += [((*place.path, key), ()) for key, _ in children(place.node)]
            waiting += [(target, place.path) for target in mentions(place.node, place.path, tree)]
    return nodes


def unread(config: Any, read: Mapping[Path, Any] | None = None) -> list[str]:
    """Return the keys that are not `reached`; a block that is entirely unread is returned as one key."""
    read = reached(config) if read is None else read
    above = {path[:length] for path in read for length in range(len(path) + 1)}

    def walk(node: Any, here: Path) -> list[str]:
        if here in read or here[-1:] == ("_apart_",):  # `_apart_` describes other keys
            return []
        if here not in above:
            return [dotted(here)]
        return [key for name, entry in children(node) for key in walk(entry, (*here, name))]

    return walk(plain(config), ())


def missing(read: Mapping[Path, Any]) -> list[str]:
    """Return the keys that are `reached` and have no value yet (`???`)."""
    return [dotted(path) for path, node in read.items() if node == "???"]


def resolve_texts(config: Any, read: Mapping[Path, Any]) -> dict[Path, Any]:
    """Return the value of each text with a `${resolver:…}` that is `reached` and depends on no object.

    Raises: ConfigError if a resolver fails.
    """
    tree, values = plain(config), {}
    for path, node in read.items():
        if not isinstance(node, str) or "${" not in node or link_of(tree, path, node) is not None:
            continue
        if any(locate(tree, target, referrer=path).beyond for target in mentions(node, path, tree)):
            continue  # known only when the object is built
        try:
            values[path] = OmegaConf.select(config, dotted(path))
        except OmegaConfBaseException as error:
            if "hydra" in resolvers(node):
                raise ConfigError(
                    f"{dotted(path)}: ${{hydra:…}} has a value in hydra.run.dir and its like only"
                ) from error
            raise ConfigError(f"{dotted(path)}: {one_line(error)}") from error
    return values


def is_object(node: Any) -> bool:
    """Return True if a node is, or contains, an object to build."""
    if isinstance(node, Mapping) and "_target_" in node:
        return True
    return any(is_object(entry) for _, entry in children(node))


own_resolvers: set[str] = set()  # names of the user's functions that `build.register_resolvers` registered
OF_HYDRA = ("hydra", "now", "version")


def require_own_resolvers(tree: Any, installed: Container[str]) -> None:
    """Refuse a resolver that another config in this process registered and this config does not declare.

    Raises: ConfigError if the config uses one.
    """
    foreign = own_resolvers - {*(tree.get("resolvers") or {})}
    for path, text in texts(tree) if foreign else ():
        names = foreign.intersection(resolvers(text)) if isinstance(text, str) and "${" in text else ()
        for name in (name for name in names if name not in installed):
            way_out = f"resolvers.{name}=my_package.function names its function"
            raise ConfigError(f"{dotted(path)}: Unsupported interpolation type {name}; {way_out}")


def used_resolvers(tree: Any) -> set[str]:
    """Return the names of the resolvers in a config, apart from Hydra's and OmegaConf's own."""
    names = {name for _, text in texts(tree) if isinstance(text, str) and "${" in text for name in resolvers(text)}
    return {name for name in names if name not in OF_HYDRA and not name.startswith("oc.")}


@functools.lru_cache(4096)
def resolvers(text: str) -> list[str]:
    """Return the text between each `${` and its colon; a name with interpolations stays as it is written."""
    names = []
    start = text.find("${")
    while start >= 0:
        depth, end = 0, start + 2
        while end < len(text) and (depth or text[end] not in ":}"):
            depth += text.startswith("${", end) - (text[end] == "}")
            end += 1
        if end < len(text) and text[end] == ":":
            names.append(text[start + 2 : end].strip())
        start = text.find("${", start + 2)
    return names

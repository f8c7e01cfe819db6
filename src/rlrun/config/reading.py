"""Which keys of a config are read, found without building anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

from rlrun.config.interpolation import Path, child, children, dotted, link_of, locate, mentions, plain, split
from rlrun.core.errors import ConfigError

# Read by the experiment itself, whatever is built; everything else is reached from `trainer`.
ROOTS = (
    "seed",
    "stop",
    "num_envs",
    "learners",
    "evaluation",
    "checkpoint",
    "log",
    "logger",
    "device",
    "threads",
    "precision",
    "matmul_backend",
    "compile",
    "expect",
    "init",
    "load",
    "trainer",
)


def reached(config: Any, roots: Iterable[str] = ROOTS) -> dict[Path, Any]:
    """Return every node that is read: the roots, what is below, and what interpolations lead to.

    Raises: ConfigError if an interpolation on the way dangles or goes round in a circle.
    """
    tree = plain(config)
    nodes: dict[Path, Any] = {}
    waiting: list[tuple[Path, Path]] = [(split(root), ()) for root in roots if split(root)[0] in tree]
    while waiting:
        path, referrer = waiting.pop()
        if path in nodes:
            continue
        place = locate(tree, path, referrer=referrer)
        for link in place.links:
            nodes[link] = text = reduce(child, link, tree)
            if text.count("${") > 1:  # ${a.${b}} reads b
                waiting += [(target, link) for target in mentions(text, link)]
        if place.path not in nodes:
            nodes[place.path] = place.node
            waiting += [((*place.path, key), ()) for key, _ in children(place.node)]
            waiting += [(target, place.path) for target in mentions(place.node, place.path)]
    return nodes


def unread(config: Any, read: Mapping[Path, Any] | None = None) -> list[str]:
    """Return the keys that are not `reached`; for a block of which nothing is read, the block."""
    read = reached(config) if read is None else read
    above = {path[:length] for path in read for length in range(len(path) + 1)}

    def walk(node: Any, here: Path) -> list[str]:
        if here in read:
            return []
        if here not in above:
            return [dotted(here)]
        return [key for name, entry in children(node) for key in walk(entry, (*here, name))]

    return walk(plain(config), ())


def missing(read: Mapping[Path, Any]) -> list[str]:
    """Return the keys that are `reached` and still wait for a value."""
    return [dotted(path) for path, node in read.items() if node == "???"]


def resolve_texts(config: Any, read: Mapping[Path, Any]) -> None:
    """Evaluate each `${resolver:…}` that is `reached` and depends on no object.

    Raises: ConfigError if one fails.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    tree = plain(config)
    for path, node in read.items():
        if not isinstance(node, str) or "${" not in node or link_of(tree, path, node) is not None:
            continue
        if any(locate(tree, target, referrer=path).beyond for target in mentions(node, path)):
            continue  # known only when the object is built
        try:
            OmegaConf.select(config, dotted(path))
        except OmegaConfBaseException as error:
            raise ConfigError(f"{dotted(path)}: {str(error).splitlines()[0]}") from error


def is_object(node: Any) -> bool:
    """Return True if a node is, or contains, an object to build."""
    if isinstance(node, Mapping) and "_target_" in node:
        return True
    return any(is_object(entry) for _, entry in children(node))

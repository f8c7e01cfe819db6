"""From a config path to the object it describes.

The same path is the same object, so `${networks.critic}` in two places is one critic. A node with
`_partial_: true` is a recipe; keys that a node lists under `_apart_` are for others to read. An
object has all that the Protocol under `_protocol_` names. Nothing is
built that the asked path does not lead to, and parts that need each other in a circle are an error.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from rlrun.config.interpolation import Location, Path, children, dotted, locate, mentions, plain, split, substitute
from rlrun.config.reading import admit_resolvers
from rlrun.config.targets import check_arguments, explain, find_target, lacks
from rlrun.core.errors import BuildError, ConfigError, MissingExtra, RlrunError, did_you_mean
from rlrun.security.trust import admit_attribute

_SUPPORTED = {"_partial_": (True, False), "_convert_": ("all",), "_recursive_": (True,)}  # of Hydra's `instantiate`
_NOT_ARGUMENTS = ("_target_", "_args_", "_apart_", "_protocol_", "_recipes_", *_SUPPORTED)


class Builder:
    """Build the parts of one config, each at most once."""

    def __init__(self, config: Any) -> None:
        self._config = config
        self.tree = plain(config)
        self.built: dict[str, Any] = {}  # path -> object
        self._open: list[Path] = []  # under construction, outermost first

    def get(self, path: str) -> Any:
        """Return the object at a path.

        Raises: BuildError with the place in the config; errors of `rlrun` that a constructor raises keep their class.
        """
        return self._at(split(path), ())

    def _at(self, path: Path, referrer: Path) -> Any:
        try:
            place = locate(self.tree, path, referrer=referrer)
        except ConfigError as error:
            raise BuildError(str(error)) from error
        part = self._object(place.path, place.node)
        return self._attribute(part, place, [referrer, *place.links][-1]) if place.beyond else part

    def _object(self, path: Path, node: Any) -> Any:
        if not isinstance(node, (Mapping, list)):
            return self._scalar(path, node)
        name = dotted(path)
        if name not in self.built:
            if path in self._open:
                chain = " -> ".join(map(dotted, [*self._open[self._open.index(path) :], path]))
                raise BuildError(f"{name}: these parts need each other in a circle: {chain}")
            self._open.append(path)
            try:
                self.built[name] = self._container(path, node)
            finally:
                self._open.pop()
        return self.built[name]

    def _container(self, path: Path, node: Any) -> Any:
        if isinstance(node, list):
            return [self._at((*path, key), path) for key, _ in children(node)]
        if "_target_" in node:
            return self._call(path, node)
        apart = self._apart(path, node)
        return {key: self._at((*path, str(key)), path) for key in node if key not in apart}

    def _call(self, path: Path, node: Mapping[str, Any]) -> Any:
        place, text = dotted(path), self._at((*path, "_target_"), path)
        target = find_target(text, place)
        partial = self._partial(path, node)
        count, names = self.given(path, node)
        protocol = find_target(self._at((*path, "_protocol_"), path), place) if "_protocol_" in node else None
        try:
            check_arguments(target, text, place, count=count, names=names, partial=partial)
        except BuildError as error:
            from rlrun.training.callback import derive  # imports torch

            hint = lacks(target, protocol) if protocol else derive(target) if path[0] == "callbacks" else ""
            raise BuildError(f"{error}{hint}") from error
        positional = self._at((*path, "_args_"), path) if "_args_" in node else []
        named = {name: self._at((*path, name), path) for name in names}
        if partial:
            return functools.partial(target, *positional, **named)
        try:
            part = target(*positional, **named)
            if protocol and (missing := lacks(part, protocol)):
                raise BuildError(f"{text}{missing}")
            return part
        except MissingExtra:
            raise
        except RlrunError as error:
            root = place.split(".")[0]
            if not str(error).startswith(tuple(f"{root}{mark}" for mark in ".:[ ")):  # else it names the place itself
                error.args = (f"{place}: {error}",)
            raise
        except Exception as error:
            raise BuildError(f"{place}: {text}: {explain(error)}") from error

    def given(self, path: Path, node: Mapping[str, Any]) -> tuple[int, list[str]]:
        """Return how many positional arguments a node gives, and the names of the others.

        Raises: BuildError if a key of Hydra's `instantiate` has a value that is not supported.
        """
        for key, values in _SUPPORTED.items():
            if key in node and (value := self._at((*path, key), path)) not in values:
                place, supported = dotted((*path, key)), " or ".join(map(json.dumps, values))
                raise BuildError(f"{place}: of Hydra's `instantiate` only {supported} is supported here, got {value!r}")
        positional = locate(self.tree, (*path, "_args_")).node if "_args_" in node else []
        count = len(positional) if isinstance(positional, list) else 0
        apart = self._apart(path, node)
        return count, [str(name) for name in node if name not in _NOT_ARGUMENTS and name not in apart]

    def _partial(self, path: Path, node: Mapping[str, Any]) -> bool:
        """Return whether a node is a recipe: it is marked itself, or its parent lists it in `_recipes_`."""
        if "_partial_" in node:
            return bool(self._at((*path, "_partial_"), path))
        above = locate(self.tree, path[:-2]).node if len(path) > 2 else None
        return isinstance(above, Mapping) and path[-2] in above.get("_recipes_", ())

    def _apart(self, path: Path, node: Mapping[str, Any]) -> Sequence[str]:
        """Return the keys of a node that belong to other parts: they are settings of it, not arguments."""
        return ("_apart_", *locate(self.tree, (*path, "_apart_")).node) if "_apart_" in node else ()

    def _scalar(self, path: Path, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if value == "???":
            raise BuildError(f"{dotted(path)}: a value is needed: {dotted(path)}=…")
        return self._text(path, value) if "${" in value else value

    def _text(self, path: Path, value: str) -> Any:
        """Evaluate a text with interpolations inside; what comes out of objects is put in first."""
        from omegaconf import DictConfig, ListConfig, OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        try:
            mentioned = [locate(self.tree, target, referrer=path) for target in mentions(value, path)]
            if any(place.beyond for place in mentioned):
                filled = substitute(value, path, lambda target: self._at(target, path))
                admit_resolvers(filled, dotted(path))  # what was filled in is text of the config, too
                node = OmegaConf.create({"value": filled})["value"]
            else:
                if not OmegaConf.is_config(self._config):
                    self._config = OmegaConf.create(self._config)
                node = self._config
                for key in path:
                    node = node[int(key)] if isinstance(node, ListConfig) else node[key]
        except (OmegaConfBaseException, ConfigError) as error:
            message, place = str(error).splitlines()[0], f"{dotted(path)}:"
            raise BuildError(message if message.startswith(place) else f"{place} {message}") from error
        return OmegaConf.to_container(node, resolve=True) if isinstance(node, (DictConfig, ListConfig)) else node

    def _attribute(self, value: Any, place: Location, referrer: Path) -> Any:
        """Go on beyond an object: an attribute, or an entry where there is a dict."""
        for index, name in enumerate(place.beyond):
            if isinstance(value, Mapping) and name in value:
                value = value[name]
            elif hasattr(value, name):
                value = getattr(value, name)
            else:
                known = [*value] if isinstance(value, Mapping) else [key for key in dir(value) if key[0] != "_"]
                so_far = dotted((*place.path, *place.beyond[:index]))
                near = did_you_mean(name, map(str, known), f"{so_far}.")
                asker = f"{dotted(referrer)}: " if referrer else ""
                raise BuildError(f"{asker}'{so_far}' ({type(value).__name__}) has no '{name}'{near}")
            admit_attribute(name, value, dotted(referrer or place.path))
        return value

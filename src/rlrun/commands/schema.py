"""JSON schemas of config files, for completion and errors in editors; the Python equivalent of `rlrun schema`.

One schema is for files of the whole config (`# @package _global_`, and train.yaml). Each group whose files have only
their own part, such as env, has another. They are in draft 7, which YAML language servers read.
"""

import importlib
import inspect
import json
import pkgutil
import re
import types
import typing
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlrun.callbacks.logging.sinks import SINKS
from rlrun.config.arguments import parameters
from rlrun.config.build import find_target
from rlrun.config.files import read_yaml
from rlrun.config.interpolation import child, dotted, leaves, mentions, nested
from rlrun.config.places import ConfigFolder, add_to_path, group_names, offers, own_dirs, project_dir, readable_places
from rlrun.config.schema import KINDS, NUMBER, OPEN
from rlrun.core.errors import RequestError, RlrunError
from rlrun.core.files import require_writable, write_text
from rlrun.core.layers import PARTS

FOLDER = ".schema"  # in the config folder
ROOT = "train"  # name of the schema of the whole config
GLOBAL = re.compile(r"^#\s*@package\s+_global_\s*$", re.MULTILINE)
DOCUMENT = "http://json-schema.org/draft-07/schema#"
Schema = dict[str, Any]

LINK: Schema = {"type": "string", "pattern": r"\$\{|^\?\?\?$"}  # an interpolation or a missing value
PRIVATE: Schema = {"^_[a-z]+_$": {}}  # _partial_ and the like
PLAIN: dict[Any, Schema] = {
    bool: {"type": "boolean"},
    int: NUMBER,
    float: NUMBER,
    str: {"type": "string"},
    types.NoneType: {"type": "null"},
}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/definitions/{name}"}


OBJECT: Schema = {"type": "object", "required": ["_target_"], "allOf": [_ref("object")]}


def schema(folder: Path | str | None = None) -> list[Path]:
    """Write the schemas of every key, group choice, `_target_` and its arguments.

    Args:
        folder: the config folder that you edit; None = ./conf. Its own options and classes are included.

    Returns:
        The files, in the folder `.schema` of the config folder.

    Raises:
        RequestError: there is no such folder, or nothing can be written there.
    """
    place = Path.cwd() / "conf" if folder is None else Path(folder)
    if not place.is_dir():
        raise RequestError(f"schema: there is no folder {place}; --config-dir names the one whose files you edit")
    target = place / FOLDER
    require_writable(place)
    target.mkdir(exist_ok=True)
    paths = []
    for name, content in schemas(place).items():
        paths.append(target / f"{name}.json")
        write_text(paths[-1], json.dumps(content, indent=1) + "\n")
    return paths


def schemas(folder: Path) -> dict[str, Schema]:
    """Return the schemas by name."""
    add_to_path(project_dir(folder))
    return _Schemas(readable_places(folder), own_dirs(folder), group_names(folder)).all()


class _Node:
    """All values that config files have at one path."""

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.targets: set[str] = set()
        self.recipes: set[str] = set()
        self.apart: set[str] = set()
        self.values: list[Any] = []
        self.is_mapping = False

    def add(self, value: Any) -> None:
        if not isinstance(value, Mapping):
            self.values.append(value)
            return
        self.is_mapping = True
        for key, entry in value.items():
            if key == "_target_":
                self.targets.add(str(entry))
            elif key == "_recipes_":
                self.recipes |= set(entry)
            elif key == "_apart_":
                self.apart |= set(entry)
            elif not re.fullmatch("_[a-z]+_", str(key)):
                self.children.setdefault(str(key), _Node()).add(entry)

    @property
    def says_something(self) -> bool:
        """Return True if a file has a value here that is not a mere interpolation."""
        return self.is_mapping or any(not (isinstance(value, str) and "${" in value) for value in self.values)


class _Schemas:
    """The schemas of the files on a search path; own: the user's folders, of which only keys that are read count."""

    def __init__(self, places: Sequence[ConfigFolder], own: Sequence[Path], groups: Sequence[str]) -> None:
        self.places = places
        self.groups = groups
        self.root = _Node()
        self.parts: dict[str, _Node] = {}  # groups whose files have only their own part
        self.targets: dict[str, Any] = {}
        self.packages = {"rlrun", "torch"}  # packages with known targets only
        own_trees, envs = [], _Node()
        for place in places:
            mine = not place.packaged and place.path in own
            for path in sorted(place.path.rglob("*.yaml")):
                tree = read_yaml(path)
                group = path.relative_to(place.path).parent.as_posix()
                if group != "." and not GLOBAL.search(path.read_text(encoding="utf-8")):
                    self.parts.setdefault(group, _Node())
                    tree = {"defaults": tree.pop("defaults", []), group: tree}
                if isinstance(text := child(child(tree, "env"), "target"), str):
                    envs.targets.add(text)
                if mine:
                    own_trees.append(tree)
                else:
                    self.root.add(tree)
        self._add_own(own_trees)
        for name in self.parts:
            self.parts[name] = self.root.children.get(name, _Node())
        self._find_targets(self.root)
        self._find_targets(envs)
        self._add_public()
        self.arguments = {name: arguments_of(entry) for name, entry in sorted(self.targets.items())}
        self._add_apart(self.root)

    def _add_own(self, trees: Sequence[Mapping[str, Any]]) -> None:
        """Add objects, and keys that some file reads; an unread key may be a typing error."""
        read = {path for tree in trees for here, leaf in leaves(tree) for path in mentions(leaf, here)}
        for tree in trees:
            for here, leaf in leaves(tree):
                if any(here[: len(path)] == path for path in read) or "_target_" in here:
                    self.root.add(nested(here, leaf))

    def _add_apart(self, node: _Node) -> None:
        """Accept keys under `_apart_` beside the arguments of objects; other parts read them."""
        for name in node.targets & self.arguments.keys():
            if accepted := self.arguments[name][0]:
                accepted["properties"] = {key: {} for key in node.apart} | accepted["properties"]
        for child_ in node.children.values():
            self._add_apart(child_)

    def _find_targets(self, node: _Node) -> None:
        for text in node.targets:
            try:
                self.targets[text] = find_target(text, "schema")
            except RlrunError:  # a missing extra, or an error: the target stays unknown
                continue
            if text.split(".")[0] not in self.packages:
                self.packages.add(text.split(".")[0])
                self._add_package(text.split(".")[0])
        for below in node.children.values():
            self._find_targets(below)

    def _add_package(self, name: str) -> None:
        """Add the classes in the modules of a package."""
        package = importlib.import_module(name)
        for module in pkgutil.iter_modules(getattr(package, "__path__", []), f"{name}."):
            with suppress(Exception, SystemExit):  # the module is a script, or needs an extra
                if not module.name.endswith(".__main__"):
                    self._add_classes(importlib.import_module(module.name))

    def _add_public(self) -> None:
        for part in PARTS:
            package = importlib.import_module(f"rlrun.{part}")
            for name in getattr(package, "__all__", ()):
                if inspect.isclass(entry := getattr(package, name)):
                    self.targets[f"{package.__name__}.{name}"] = entry
            self._add_package(package.__name__)
            for room in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
                if room.ispkg:
                    self._add_package(room.name)
        for name in ("torch.optim", "torch.nn"):
            module_ = importlib.import_module(name)
            for key, entry in vars(module_).items():
                if inspect.isclass(entry) and not key.startswith("_"):
                    self.targets[f"{name}.{key}"] = entry

    def _add_classes(self, module: types.ModuleType) -> None:
        for name, entry in vars(module).items():
            if inspect.isclass(entry) and entry.__module__ == module.__name__ and not name.startswith("_"):
                self.targets[f"{module.__name__}.{name}"] = entry

    def all(self) -> dict[str, Schema]:
        """Return the schemas by name."""
        definitions = self.definitions()
        result = {}
        for name, node in {ROOT: self.root, **self.parts}.items():
            path = () if name == ROOT else tuple(name.split("/"))
            body = self.mapping(node, path)
            body["properties"]["defaults"] = self.defaults("" if name == ROOT else name)
            title = "rlrun: a config" if name == ROOT else f"rlrun: an option of the group {name}"
            result[name.replace("/", "_")] = {"$schema": DOCUMENT, "title": title, **body, "definitions": definitions}
        return result

    def definitions(self) -> Schema:
        """Return the shared definitions, with a schema for each `_target_`."""
        outside = "|".join(sorted(map(re.escape, self.packages)))
        known: Schema = {
            "anyOf": [
                {"enum": sorted(self.targets)},
                {"type": "string", "pattern": rf"^(?!({outside})\.)[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$"},
                LINK,
            ]
        }
        entries = {"items": _ref("anything"), "additionalProperties": _ref("anything")}
        is_object = {"type": "object", "required": ["_target_"]}
        anything = {"if": is_object, "then": _ref("object"), "else": entries}  # any value, with its objects checked
        definitions: Schema = {"target": known, "anything": anything}
        for kind in ("object", "override"):  # an override may inherit arguments from the file that it overrides
            choices = []
            for name, (accepted, required) in self.arguments.items():
                then: Schema = _ref(name) if accepted else {}
                if kind == "object" and required:
                    lacks = {"not": {"anyOf": [{"required": ["_partial_"]}, {"required": ["_args_"]}]}}
                    then = {"allOf": [then, {"if": lacks, "then": {"required": required}}]}
                if then:
                    is_it = {"properties": {"_target_": {"const": name}}, "required": ["_target_"]}
                    choices.append({"if": is_it, "then": then})
            definitions[kind] = {
                "type": ["object", "string", "null", "array"],
                "properties": {"_target_": _ref("target")},
                "allOf": choices,
            }
        return definitions | {name: accepted for name, (accepted, _) in self.arguments.items() if accepted}

    def mapping(self, node: _Node, path: tuple[str, ...]) -> Schema:
        """Return the schema of a mapping at a path."""
        properties = {name: self.value(child, (*path, name)) for name, child in sorted(node.children.items())}
        for name in properties.keys() & node.recipes:  # the caller adds further arguments to each entry
            entries = {"type": ["array", "object"], "items": _ref("override"), "additionalProperties": _ref("override")}
            properties[name] = {"anyOf": [entries, LINK]}
        for target in sorted(node.targets & self.targets.keys()):
            for name, hinted in self.arguments[target][0].get("properties", {}).items():
                if name not in node.children or not node.children[name].says_something:
                    properties[name] = hinted
        if node.targets:
            properties["_target_"] = _ref("target")
        body: Schema = {"properties": properties, "patternProperties": PRIVATE}
        children = node.children.values()
        objects = any(below.targets for below in children)
        if any(name not in self.targets or not self.arguments[name][0] for name in node.targets):
            body["additionalProperties"] = _ref("anything")
        elif not node.targets and objects and all(below.targets or below.values for below in children):
            # blocks such as callbacks and networks, to which a file may add entries of any name
            body["additionalProperties"] = _ref("object")
        else:
            body["additionalProperties"] = dotted(path) in OPEN
        if path == ("env",):
            body["allOf"] = [
                {
                    "if": {"properties": {"target": {"const": name}}, "required": ["target"]},
                    "then": {"properties": {"kwargs": _ref(name)}},
                }
                for name, entry in sorted(self.targets.items())
                if (hasattr(entry, "step") or not inspect.isclass(entry)) and self.arguments[name][0]
            ]
        if path == ():
            properties |= {key.split(".")[0]: {} for key in KINDS if key.split(".")[0] not in properties}
            properties["hydra"] = {}
        return {"type": ["object", "null"], **body}

    def value(self, node: _Node, path: tuple[str, ...]) -> Schema:
        """Return the schema of a value at a path."""
        if path == ("logger",):
            known = {"type": "object", "properties": {name: {} for name in SINKS}, "additionalProperties": False}
            sink: Schema = {"anyOf": [{"enum": list(SINKS)}, LINK, OBJECT, known]}
            return {"anyOf": [*sink["anyOf"], {"type": "array", "items": sink}, {"type": "null"}]}
        if path == ("env", "target"):
            return {"anyOf": [_ref("target"), {"type": "null"}]}
        kind = KINDS.get(dotted(path))
        if kind is not None:
            return {"anyOf": [kind.json, LINK, OBJECT]}
        options: list[Schema] = [LINK]
        if node.is_mapping:
            body = self.mapping(node, path)
            if node.targets:
                same = {"properties": {"_target_": {"enum": sorted(node.targets)}}}
                body = {"allOf": [_ref("override"), {"if": same, "then": body}]}
            options.append({"type": ["object", "null"], **body})
        kinds = {type(value) for value in node.values if not (isinstance(value, str) and "${" in value)}
        if not node.is_mapping and (types.NoneType in kinds or not kinds):
            return _ref("anything")
        options += [of_type(kind_) for kind_ in sorted(kinds - {types.NoneType}, key=str)]
        if not node.is_mapping:
            options.append(OBJECT)
        return {"anyOf": [*options, {"type": "null"}]}

    def defaults(self, group: str) -> Schema:
        """Return the schema of a defaults list, in which each choice must exist."""
        groups = {name: sorted(offers(name, self.places)) for name in self.groups}
        properties: Schema = {r"^(override )?/?hydra/": {}}
        texts = []
        for name, options in groups.items():
            choice: Schema = {"anyOf": [{"enum": [*options, None, "???"]}, LINK]}
            properties[rf"^(override )?/?(rlrun/)?{name}(@[\w.]+)?$"] = {
                "anyOf": [*choice["anyOf"], {"type": "array", "items": choice}]
            }
            near = "?" if name == group or (not group and name not in self.parts) else ""
            texts.append(rf"(/?(rlrun/)?{name}/){near}({'|'.join(map(re.escape, options))})")
        pattern = rf"^({'|'.join(texts)})(@[\w.]+)?$"
        entry: Schema = {"type": "object", "patternProperties": properties, "additionalProperties": False}
        items = [{"const": "_self_"}, {"type": "string", "pattern": pattern}, entry]
        return {"type": "array", "items": {"anyOf": items}}


def arguments_of(target: Any) -> tuple[Schema, list[str]]:
    """Return the schema of a target's arguments, and the names of required ones; empty if they are unknown."""
    try:
        entries = parameters(target, subclasses=True)
    except (ValueError, TypeError):  # some classes written in C have no signature
        return {}, []
    hints: dict[str, Any] = {}
    for owner in reversed(target.__mro__) if inspect.isclass(target) else [target]:
        with suppress(Exception):  # an annotation may have names that only type checkers import
            hints |= typing.get_type_hints(owner.__init__ if inspect.isclass(owner) else owner)
    named = [entry for entry in entries if entry.kind in (entry.POSITIONAL_OR_KEYWORD, entry.KEYWORD_ONLY)]
    required = [entry.name for entry in named if entry.default is entry.empty]
    if any(entry.kind is entry.VAR_KEYWORD for entry in entries):
        return {}, required
    properties = {entry.name: of_hint(hints.get(entry.name)) for entry in named}
    body = {"properties": properties, "patternProperties": PRIVATE, "additionalProperties": False}
    return {**body, "description": (inspect.getdoc(target) or "").split("\n\n")[0]}, required


def of_type(kind: type) -> Schema:
    """Return the schema of values like a default of this type."""
    lists = {"anyOf": [{"type": "array", "items": _ref("anything")}, NUMBER]}
    return {**PLAIN, list: lists}.get(kind, _ref("anything"))


def of_hint(hint: Any) -> Schema:
    """Return the schema for an argument's annotation; any value, if the annotation is not a plain type."""
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return {"anyOf": [{"enum": list(typing.get_args(hint))}, LINK]}
    parts = typing.get_args(hint) if origin in (typing.Union, types.UnionType) else (hint,)
    if hint is None or any(part not in PLAIN for part in parts):
        return _ref("anything")
    return {"anyOf": [*(PLAIN[part] for part in parts), LINK, OBJECT]}

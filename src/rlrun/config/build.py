"""Build the object that a config path describes.

The same path is the same object, so `${networks.critic}` in two places is one critic. A node with `_partial_: true` is
a recipe. Keys that a node lists under `_apart_` are settings for other parts. An object must have all attributes of
the Protocol under `_protocol_`. Only parts that the requested path leads to are built, and a circle of parts is an
error.
"""

import functools
import importlib
import importlib.util
import inspect
import json
import pickle
import pkgutil
import re
from collections.abc import Collection, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlrun.config import keys, plugins, reading, replaced
from rlrun.config.arguments import check_arguments, fitted, hints_of, parameters
from rlrun.config.files import parse_yaml
from rlrun.config.interpolation import Location, Path, children, dotted, locate, mentions, plain, split, substitute
from rlrun.core.errors import BuildError, ConfigError, MissingExtra, RlrunError, did_you_mean

_SUPPORTED = {
    "_partial_": (True, False),
    "_convert_": ("all", "partial"),
    "_recursive_": (True, False),
}  # of Hydra's `instantiate`
_ABSENT: Any = object()
_NOT_ARGUMENTS = ("_target_", "_args_", "_apart_", "_inputs_", "_protocol_", "_recipes_", *replaced.KEYS, *_SUPPORTED)


SHOWN = 20  # classes of a module that a message lists


class Builder:
    """Build the parts of one config, each at most once."""

    def __init__(self, config: Any) -> None:
        self._config = config
        self.tree = plain(config)
        register_resolvers(self.tree)
        self.built: dict[str, Any] = {}  # path -> object
        self.left_out: dict[str, str] = {}  # path of a user's class -> which packaged keys it gets, and which not
        self._open: list[Path] = []  # under construction, outermost first
        self._links: dict[Path, set[str]] = {}  # part -> paths that its node links to
        self._recipes: list[keys.Given] = []  # that parts may call

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
        if (
            place.beyond and place.links and path[: len(place.path)] == place.path
        ):  # a part links to itself while it is built
            raise BuildError(f"{dotted(path)}: leads to '{dotted(place.path + place.beyond)}', which is no key")
        part = self._object(place.path, place.node)
        return self._attribute(part, place, [referrer, *place.links][-1]) if place.beyond else part

    def _object(self, path: Path, node: Any) -> Any:
        if not isinstance(node, (Mapping, list)):
            return self._scalar(path, node)
        name = dotted(path)
        if self._open:
            self._links.setdefault(self._open[-1], set()).add(name)
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
        former = find_target(node["_replaces_"], place) if "_replaces_" in node else None
        names, offered = (names, {}) if former is None else self._for_own(path, node, target, former)
        protocol = find_target(self._at((*path, "_protocol_"), path), place) if "_protocol_" in node else None
        try:
            check_arguments(target, text, place, count=count, names=[*names, *offered], partial=partial)
        except BuildError as error:
            from rlrun.training.callback import derive  # imports torch

            hint = derive(target) if path[0] == "callbacks" and len(path) == 2 else ""
            if former is not None and inspect.isroutine(target) and _takes_distance(former):
                hint = f"; of values and targets alone, it is '+{place}.distance={{_target_: {text}, _partial_: true}}'"
            if path[-1] == "optimizer" and not partial:
                hint = "; `_partial_: true` leaves the parameters to the loss"
            if path[0] in ("algorithm", "encoder") and hasattr(target, "forward") and " needs the " in str(error):
                hint = "; `_partial_: true` leaves the rest to the network that calls it"
            raise BuildError(f"{error}{hint}") from error
        positional = self._argument(path, node, "_args_") if "_args_" in node else []
        named = {name: self._argument(path, node, name) for name in names} | offered
        for name, kinds in hints_of(target).items():
            if name in names:
                named[name] = self._fitted((*path, name), named[name], kinds)
        given = keys.Given(target, path, named)
        if partial:
            self._recipes.append(given)
            return functools.partial(target, *positional, **named)
        try:
            part = target(*positional, **named)
            if odd := keys.not_a_part(given, self.tree):
                raise BuildError(odd)
            if former is not None and replaced.is_plain(part):
                part = self._completed(path, node, former, part, functools.partial(target, *positional, **named))
            if protocol and (missing := lacks(part, protocol)):
                raise BuildError(f"{text}{missing}")
            if hasattr(part, "config_keys"):
                part.config_keys = {name: self.key(path, name) for name in named}
            if "_inputs_" in node:
                part.inputs = self._inputs(path, part)
            if hasattr(part, "made_by"):
                part.made_by(self._recipe(path, target))
            return part
        except MissingExtra:
            raise
        except RlrunError as error:
            error.args = (keys.named(error, self.tree, [given, *self._recipes]),)
            raise
        except Exception as error:
            if of_value := keys.misfit(error, self.tree, [given, *self._recipes]):
                raise BuildError(of_value) from error
            unknown = (
                re.search(r"unexpected keyword argument '(\w+)'", str(error)) if type(error) is TypeError else None
            )
            if unknown is not None and unknown[1] in named:  # a base class refuses one of its `**options`
                near = did_you_mean(unknown[1], replaced.named(parameters(target, subclasses=True)))
                raise BuildError(f"{place}.{unknown[1]}: {text} takes no argument '{unknown[1]}'{near}") from error
            raise BuildError(f"{place}: {text}: {explain(error)}") from error

    def _fitted(self, path: Path, value: Any, kinds: Collection[Any]) -> Any:
        """Return an argument converted to one of the kinds that its class takes.

        Raises: ConfigError that names the key which holds the value, at the end of all links.
        """
        place = locate(self.tree, path)
        if isinstance(value, str) and str not in kinds and "${" in str(place.node):  # as ${oc.env:NUMBER} gives it
            value = parse_yaml(f"value: {value}", dotted(path))["value"]
        try:
            return fitted(value, kinds)
        except ConfigError as error:
            reader = f"; {dotted(place.links[-1])} reads it" if len(place.links) > 1 else ""
            raise ConfigError(f"{self.key(path[:-1], path[-1])}: {error}{reader}") from error

    def key(self, path: Path, argument: str) -> str:
        """Return the key that holds an argument of the part at a path."""
        return keys.key_of(self.tree, path, argument)

    def _recipe(self, path: Path, target: Any) -> "Recipe":
        """Return a recipe that builds a part again; parts elsewhere that its node links to are shared."""
        asked = {name for part, names in self._links.items() if part[: len(path)] == path for name in names}
        shared = {name: self.built[name] for name in sorted(asked) if split(name)[: len(path)] != path}
        return Recipe(self.tree, path, tuple(replaced.named(parameters(target))), shared)

    def _argument(self, path: Path, node: Mapping[str, Any], name: str) -> Any:
        """Return one argument for the call of a node's `_target_`."""
        built = "_recursive_" not in node or self._at((*path, "_recursive_"), path)
        return self._at((*path, name), path) if built else self._unbuilt((*path, name), node[name])

    def _unbuilt(self, path: Path, node: Any) -> Any:
        """Return a config whose links are replaced by objects, while its own nodes stay plain data."""
        if isinstance(node, Mapping):
            return {key: self._unbuilt((*path, str(key)), entry) for key, entry in node.items()}
        if isinstance(node, list):
            return [self._unbuilt((*path, key), entry) for key, entry in children(node)]
        return self._at(path, path[:-1])

    def _for_own(
        self, path: Path, node: Mapping[str, Any], target: Any, former: Any
    ) -> tuple[list[str], dict[str, Any]]:
        """Return the keys of a node that a user's class in place of `former` takes, and further arguments for it.

        Keys that the user set always stay, so one that the class does not take is refused later.
        """
        _, names = self.given(path, node)
        try:
            params = parameters(target, subclasses=True)
        except (ValueError, TypeError):  # some classes written in C have no signature
            return names, {}
        lists = {name for name in node["_optional_"] if isinstance(locate(self.tree, (*path, name)).node, list)}
        unfit = lists.intersection(entry.name for entry in params if replaced.wants_number(entry))
        own = [] if replaced.takes_nothing(target) else replaced.taken(params, [x for x in names if x not in unfit])
        wrapped = replaced.taken(parameters(former), names) if _wraps(former) else ()
        known = [*own, *(name for name in wrapped if name not in replaced.VOID)]
        refused = [name for name in names if name not in known and name not in node["_optional_"]]
        self._leave_out(path, node, [name for name in names if name not in own and name not in refused], target)
        needed = [entry.name for entry in params if entry.default is entry.empty and entry.name not in own]
        places = {name: replaced.OFFERED[name] for name in needed if name in replaced.OFFERED}
        return [*own, *refused], {name: self._at(split(place), path) for name, place in places.items()}

    def _completed(self, path: Path, node: Mapping[str, Any], former: Any, part: Any, recipe: Any) -> Any:
        """Return the packaged network `former` with a user's plain module as its layers, if it takes layers.

        Otherwise return the module itself.

        Raises: BuildError if the module lacks methods of the packaged network.
        """
        if not _wraps(former):
            if _takes_distance(former):
                from rlrun.training.callback import derive  # imports torch

                rest = "reduction: none" if "reduction" in replaced.named(parameters(type(part))) else "…"
                value = f"{{_target_: {node['_target_']}, {rest}}}"
                way_out = f"; of values and targets alone, it is '+{dotted(path)}.distance={value}'"
                raise BuildError(f"{node['_target_']}{derive(type(part))}{way_out}")
            if missing := replaced.lacking(part, former):
                doc = former.__doc__.splitlines()[0]
                raise BuildError(f"{node['_target_']} is in the place of {former.__name__}: {doc} It lacks {missing}")
            return part
        _, names = self.given(path, node)
        own = [name for name in names if name in recipe.keywords]
        known = replaced.taken(parameters(former, subclasses=True), names)
        self._leave_out(path, node, [name for name in names if name not in own and name in replaced.VOID], recipe.func)
        void = [name for name in replaced.VOID if name in node["_optional_"] and name not in node.get("_wanted_", ())]
        kept = [name for name in known if name not in void and (name in node["_optional_"] or name not in own)]
        return former(**{name: self._at((*path, name), path) for name in kept}, layers=recipe)

    def _leave_out(self, path: Path, node: Mapping[str, Any], names: list[str], target: Any) -> None:
        """Note the packaged keys that a user's class does not get, and those that replace its own defaults."""
        defaults = [entry.name for entry in parameters(target, subclasses=True) if entry.default is not entry.empty]
        packaged = ", ".join(name for name in defaults if name in node["_optional_"] and name not in names)
        gets = f"gets the packaged {packaged}" if packaged else ""
        lacks = f"does not take the packaged {', '.join(names)}: left out" if names else ""
        if gets or lacks:
            self.left_out[dotted(path)] = f"{node['_target_']} {' and '.join(filter(None, (gets, lacks)))}"

    def _inputs(self, path: Path, part: Any) -> Mapping[str, str]:
        """Return the `_inputs_` of a callback: argument of its hooks -> name of the column that it reads."""
        inputs = self._at((*path, "_inputs_"), path)
        if not hasattr(part, "inputs"):
            raise BuildError(f"{dotted(path)}._inputs_: a {type(part).__name__} is no callback, whose hooks read names")
        if not isinstance(inputs, Mapping) or not all(isinstance(name, str) for name in inputs.values()):
            raise BuildError(f"{dotted(path)}._inputs_: wanted {{argument: name that it reads}}, got {inputs!r}")
        return inputs

    def given(self, path: Path, node: Mapping[str, Any]) -> tuple[int, list[str]]:
        """Return the number of a node's positional arguments, and the names of its keyword arguments.

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
        """Return whether a node is a recipe: it has `_partial_: true`, or the node above lists it in `_recipes_`."""
        if "_partial_" in node:
            return bool(self._at((*path, "_partial_"), path))
        above = locate(self.tree, path[:-2]).node if len(path) > 2 else None
        return isinstance(above, Mapping) and path[-2] in above.get("_recipes_", ())

    def _apart(self, path: Path, node: Mapping[str, Any]) -> Sequence[str]:
        """Return the keys of a node that are settings for other parts instead of arguments."""
        return ("_apart_", *locate(self.tree, (*path, "_apart_")).node) if "_apart_" in node else ()

    def _scalar(self, path: Path, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if value == "???":
            raise BuildError(f"{dotted(path)}: a value is needed: {dotted(path)}=…")
        return self._text(path, value) if "${" in value else value

    def _text(self, path: Path, value: str) -> Any:
        """Evaluate a text with interpolations inside; attributes of built objects are inserted first."""
        try:
            mentioned = [locate(self.tree, target, referrer=path) for target in mentions(value, path)]
            if any(place.beyond for place in mentioned):
                filled = substitute(value, path, lambda target: self._at(target, path))
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
        """Follow the rest of a path into an object: by attributes, or by keys of a dict."""
        for index, name in enumerate(place.beyond):
            if isinstance(value, Mapping) and name in value:
                value = value[name]
            elif hasattr(value, name):
                value = getattr(value, name)
            else:
                known = [*value] if isinstance(value, Mapping) else [key for key in dir(value) if key[0] != "_"]
                so_far = dotted((*place.path, *place.beyond[:index]))
                near = did_you_mean(name, map(str, known), f"{so_far}.")
                if isinstance(value, Mapping) and not near:
                    near = f"; there are {', '.join(map(str, known))}"
                asker = f"{dotted(referrer)}: " if referrer else ""
                raise BuildError(f"{asker}'{so_far}' ({type(value).__name__}) has no '{name}'{near}")
        return value


class Recipe(NamedTuple):
    """A recipe that builds a part again, with changes.

    tree: the whole config; path: of the part's node; takes: names of its arguments; shared: parts elsewhere, by path,
    that its node links to.
    """

    tree: Mapping[str, Any]
    path: Path
    takes: tuple[str, ...]
    shared: Mapping[str, Any]

    @property
    def node(self) -> Mapping[str, Any]:
        """The part's node, its links unresolved."""
        return locate(self.tree, self.path).node  # type: ignore[no-any-return]

    def build(self, changes: Mapping[str, Any], arguments: Mapping[str, Any]) -> Any:
        """Build the part again.

        changes: new values of top-level keys; arguments: new values of the part's own keys.
        """
        again = Builder(pickle.loads(pickle.dumps({**self.tree, **changes})))
        again.built.update(self.shared)
        locate(again.tree, self.path).node.update(arguments)
        return again.get(dotted(self.path))


def _wraps(former: Any) -> bool:
    """Return whether a packaged network accepts a plain module for its layers."""
    return "layers" in replaced.named(parameters(former))


def _takes_distance(former: Any) -> bool:
    """Return whether a packaged loss accepts a distance: a function of values and targets."""
    return "distance" in replaced.named(parameters(former, subclasses=True))


def register_resolvers(tree: Any) -> None:
    """Register resolvers: functions that a config names under `resolvers`, and those of plugins that it uses.

    Raises: BuildError if a function does not exist, or OmegaConf or Hydra has a resolver of that name.
    """
    names = tree.get("resolvers") if isinstance(tree, Mapping) else None
    names = names if isinstance(names, Mapping) else {}
    used = reading.used_resolvers(tree) - {*names}
    installed = plugins.resolvers() if used else {}
    for name, text in {**{name: installed[name] for name in used & {*installed}}, **names}.items():
        place = f"resolvers.{name}"
        if not isinstance(name, str) or not name.replace(".", "_").isidentifier():
            raise BuildError(f"{place}: a name of letters is needed, as ${{double:…}} has one")
        if name in reading.OF_HYDRA or name.startswith("oc."):
            raise BuildError(f"{place}: ${{{name}:…}} is a resolver of Hydra or OmegaConf; give yours another name")
        if text is not None:
            OmegaConf.register_new_resolver(name, find_target(text, place), replace=True)
            reading.own_resolvers.add(name)


def find_target(text: Any, place: str) -> Any:
    """Import the class or function that a `_target_` names.

    Raises: BuildError if it does not exist.
    """
    if not isinstance(text, str) or not all(part.isidentifier() for part in text.split(".")):
        raise BuildError(f"{place}: `_target_` wants a path such as my_package.MyClass, got {text!r}")
    name, *rest = text.split(".")
    target: Any = _import(name, text, place)
    for index, part in enumerate(rest):
        name = f"{name}.{part}"
        try:
            inner = getattr(target, part, _ABSENT)
        except RlrunError:
            raise
        except Exception as error:  # a module that imports lazily
            raise BuildError(f"{place}: importing {name} failed: {explain(error)}") from error
        if inner is _ABSENT and isinstance(target, ModuleType) and _is_module(name):
            inner = _import(name, text, place)
        if inner is _ABSENT:
            raise BuildError(f"{place}: {_unknown(target, '.'.join(rest[: index + 1]), text)}")
        target = inner
    if not callable(target):
        raise BuildError(f"{place}: {text} is a {type(target).__name__}, wanted a class or function")
    return target


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _import(name: str, text: str, place: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise BuildError(f"{place}: {text} needs the package '{error.name}', which is not installed") from error
        known = ["rlrun", "torch", *(module.name for module in pkgutil.iter_modules(["."]))]
        near = did_you_mean(name, known) or " here; the folder of a project of yours is named by PYTHONPATH"
        raise BuildError(f"{place}: {text}: there is no module '{name}'{near}") from error
    except RlrunError:
        raise
    except Exception as error:
        raise BuildError(f"{place}: importing {name} failed: {explain(error)}") from error


def _unknown(owner: Any, path: str, text: str) -> str:
    last = path.rpartition(".")[2]
    names = [name for name in dir(owner) if not name.startswith("_")]
    if not isinstance(owner, ModuleType):
        return f"{text}: {owner.__qualname__} has no '{last}'{did_you_mean(last, names)}"
    names += [module.name for module in pkgutil.iter_modules(getattr(owner, "__path__", []))]
    near = did_you_mean(last, names, f"{owner.__name__}.")
    classes = [name for name in names if isinstance(getattr(owner, name, None), type)]
    near = near or (f"; it has {', '.join(classes)}" if 0 < len(classes) <= SHOWN else "")
    # The usual reason is another module of the same name earlier on the path.
    return f"{text}: {owner.__name__} ({getattr(owner, '__file__', None) or 'a folder'}) has no '{last}'{near}"


def explain(error: BaseException) -> str:
    """Return an exception's message on one line, with its class if the message alone says little."""
    message = " ".join(str(error).split())
    if isinstance(error, AttributeError) and error.name is not None:
        message += did_you_mean(error.name, [name for name in dir(error.obj) if name[0] != "_"])
    telling = isinstance(error, (ValueError, TypeError, RlrunError)) and message
    return message if telling else f"{type(error).__name__}: {message}".rstrip(": ")


def lacks(part: Any, protocol: Any) -> str:
    """Return the attributes of a protocol that an object lacks, as the end of a message."""
    names = [name for name in (*vars(protocol), *protocol.__annotations__) if not name.startswith("_")]
    missing = [name for name in names if not hasattr(part, name)]
    return f"; it lacks {', '.join(missing)}: {protocol.__doc__.splitlines()[0]}" if missing else ""

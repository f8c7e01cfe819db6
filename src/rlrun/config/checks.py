"""Check a composed config: types, interpolations, missing values and unread keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlrun.config import places, reading, schema
from rlrun.config.additions import require_compatible, require_optimizer
from rlrun.config.files import one_line, parse_yaml
from rlrun.config.interpolation import LinkError, child, dotted, is_there, leaves, plain, split
from rlrun.config.interpolation import Path as Keys
from rlrun.config.layers import OVERRIDE, Composed, Layer, origins
from rlrun.config.peers import hint
from rlrun.config.schema import KINDS, OPEN, TRUTH, Kind, converted, number, whole
from rlrun.core.errors import ConfigError, did_you_mean


def check(composed: Composed, roots: Sequence[str] = reading.ROOTS) -> None:
    """Check types, interpolations, missing values and unread keys.

    Raises: ConfigError for the first thing that is wrong.
    """
    config = composed.config
    env = plain(config).get("env")
    if isinstance(env, dict) and "_target_" not in env:
        file = f"env/{composed.choices.get('env')}.yaml"
        raise ConfigError(f"env: {file} has no `_target_`; let it begin with `defaults: [gym, _self_]`")
    unnamed = isinstance(env, dict) and all(name in env and env[name] is None for name in ("id", "target"))
    if unnamed and "_replaces_" not in env:
        raise ConfigError("env: no environment is named: env=NAME (rlrun list envs), env.id=ID or env.target=CLASS")
    require_compatible(composed)
    require_optimizer(composed)
    setters = origins(config, composed.layers)
    _check_completed(composed, setters)
    try:
        schema.require_memory(config)
        for key, value in {**schema.check_kinds(config), **check_likeness(config, composed.layers, setters)}.items():
            OmegaConf.update(config, key, value, merge=False)
        read = reading.reached(config, roots)
        for key in reading.missing(read):
            raise ConfigError(f"{key}: a value is needed: {key}=…")
        for key, value in _numbers_of_texts(composed, setters, reading.resolve_texts(config, read)).items():
            OmegaConf.update(config, key, value, merge=False)
    except LinkError as error:
        bare = _lacks(config, "loader")
        if not bare and "'${agent}' leads" in str(error) and plain(config).get("env"):
            name = composed.choices.get("algorithm")
            raise ConfigError(f"algorithm={name} learns from data alone; leave env= out") from error
        group = "algorithm" if bare else split(str(error).partition("'${")[2].partition("}")[0])[0]
        if group not in composed.choices and (places.packaged_dir() / group).is_dir():
            raise ConfigError(f"{group}: nothing is chosen: {group}=NAME") from error
        needing = _needing(composed, setters.get(error.place))
        if not needing:
            raise
        raise ConfigError(f"{error}; {needing}") from error
    except OmegaConfBaseException as error:
        raise ConfigError(one_line(error)) from error
    _check_unread(composed, read, setters)


def _lacks(config: Any, key: str) -> bool:
    """Return True if a config lacks a part; a loader needs a `_target_`, as train.yaml has a block without one."""
    return key not in config or (key == "loader" and "_target_" not in (config.loader or {}))


def require_ours(config: Any, layers: Sequence[Layer]) -> None:
    """Raise ConfigError, with a remedy, if a user's file replaces a packaged one and lacks a part that runs need."""
    wanted = {"train": ("trainer",), "algorithm": ("loader", "callbacks")}
    for layer in (layer for layer in layers if not layer.packaged):
        kind = layer.config_path.partition("/")[0] if "/" in layer.config_path else "train"
        if lacking := [key for key in wanted.get(kind, ()) if _lacks(config, key)]:
            ours = "train" if kind == "train" else "algorithm/sac"
            way_out = f"let it begin with `defaults: [/rlrun/{ours}, _self_]`"
            raise ConfigError(f"{layer.label}: gives no '{lacking[0]}'; {way_out}")


def _check_completed(composed: Composed, setters: Mapping[Keys, Layer]) -> None:
    """Refuse a packaged addition that sets keys of a callback or an adaptor which the algorithm lacks."""
    for path, layer in setters.items():
        depth = 2 if path[0] == "callbacks" else 3 if path[:2] == ("memory", "adaptors") else len(path)
        lacking = len(path) > depth and (*path[:depth], "_target_") not in setters
        if lacking and (needing := _needing(composed, layer)):
            raise ConfigError(f"{dotted(path[:depth])}: {needing}")


def _needing(composed: Composed, layer: Layer | None) -> str:
    """Return a message that a packaged addition needs a part which the algorithm lacks; "" for other layers."""
    if layer is None or not layer.packaged or not layer.config_path.startswith("with/"):
        return ""
    name = layer.config_path.removeprefix("with/")
    purpose = places.first_comment(places.packaged_dir() / f"{layer.config_path}.yaml")
    return f"+with={name} needs it, and algorithm={composed.choices.get('algorithm')} lacks it; {name}: {purpose}"


def _check_unread(composed: Composed, read: Mapping[Keys, Any], setters: Mapping[Keys, Layer]) -> None:
    """Refuse an unread key of an override or a user's file, and a packaged addition of which no key is read.

    Other packaged files may have unread numbers, as `~callbacks.x` removes the part that reads them.
    """
    tree = plain(composed.config)
    for layer in composed.layers:
        own = [path for path, setter in setters.items() if setter is layer]
        own = [path for path in own if path[-1] == "_target_"] or own  # only its parts count, if it has any
        if own and not any(path in read for path in own) and (needing := _needing(composed, layer)):
            place = next((path for path in own if f"with/{path[0]}" != layer.config_path), own[0])
            raise ConfigError(f"{dotted(place[:2])}: no part reads this key; {needing}")
    unread = reading.unread(tree, read)
    for key in unread:
        inside = [path for path in setters if path[: len(split(key))] == split(key)]
        packages = [f"{choice.partition('@')[2]}." for choice in composed.choices if "@" in choice]
        at = [name for name in packages if f"{key}.".startswith(name) or name.startswith(f"{key}.")]
        if at or not inside or not all(setters[path].packaged for path in inside):
            inside_unread = tuple(f"{name}." for name in unread)
            paths = dict.fromkeys(path[:length] for path, _ in leaves(tree) for length in range(1, len(path) + 1))
            keys = [name for name in map(dotted, paths) if not f"{name}.".startswith(inside_unread)]
            near = did_you_mean(key, keys) if split(key)[-1] != "_target_" else ""
            read_roots = {name: node for name, node in tree.items() if name not in unread}
            headless = _headless(setters[inside[0]] if inside else None, tree)
            known = not at and any(layer.packaged and is_there(layer.content, split(key)) for layer in composed.layers)
            gone = "; the part that read it was replaced or taken out"
            way_out = headless or (gone if known else hint(split(key), read_roots, near))
            raise ConfigError(f"{key}: no part reads this key{way_out}")


def _headless(layer: Layer | None, tree: Any) -> str:
    """Return a message that a file lacks its `# @package` header, if its keys belong to the top of the config."""
    group = split(layer.config_path.replace("/", "."))[:-1] if layer is not None else ()
    content = reduce(child, group, layer.content) if layer is not None else None
    if not group or not isinstance(content, Mapping) or not {*content} & {*tree}:
        return ""
    return "; the file has no `# @package _global_` in its first line"


def check_likeness(config: Any, layers: Sequence[Layer], setters: Mapping[Keys, Layer]) -> dict[str, Any]:
    """Check the type of each value that an override sets against the value in files; return `1e3` as an int.

    Interpolations and parts with a `_target_` are always accepted; null is, except for true and false. In a packaged
    file `1` stands for an int and `1.0` for any number; a user's file is read more freely.

    Raises: ConfigError if a value is of another type.
    """
    tree, changed = plain(config), {}
    for path, kind in _kinds_of_overrides(layers, setters).items():
        value = reduce(child, path, tree)
        if (value is None and kind is not TRUTH) or (isinstance(value, str) and ("${" in value or value == "???")):
            continue
        if isinstance(value, Mapping) and ("_target_" in value or "_replaces_" in value):
            continue
        result = converted(dotted(path), value, kind)
        if type(result) is not type(value):
            changed[dotted(path)] = result
    return changed


def _numbers_of_texts(composed: Composed, setters: Mapping[Keys, Layer], texts: Mapping[Keys, Any]) -> dict[str, Any]:
    """Return the values of resolvers such as `${oc.env:SEED}`, parsed as YAML for keys that do not take text.

    Raises: ConfigError if a value is of another kind than its key takes.
    """
    alike, values = _kinds_of_overrides(composed.layers, setters), {}
    for path, text in texts.items():
        key = dotted(path)
        kind = KINDS.get(key, alike.get(path))
        if kind is None or not isinstance(text, str):
            continue
        value = converted(key, parse_yaml(f"value: {text}", key)["value"], kind)
        if not isinstance(value, str):
            values[key] = value
    return values


def _kinds_of_overrides(layers: Sequence[Layer], setters: Mapping[Keys, Layer]) -> dict[Keys, Kind]:
    """Return the kind of value at each overridden path, derived from the value in files."""
    overridden = [path for path, layer in setters.items() if layer.label == OVERRIDE]
    if not overridden:
        return {}
    file_values: dict[Keys, tuple[Any, bool]] = {}
    for layer in layers:
        if layer.label != OVERRIDE:
            file_values.update({path: (value, layer.packaged) for path, value in leaves(layer.content)})
    within = {path[:length] for path in file_values for length in range(len(path))}  # paths of blocks in files
    heads = dict.fromkeys(path[:length] for path in overridden for length in range(1, len(path) + 1))
    paths = [path for path in heads if path in file_values and path not in within]
    kinds = {path: _kind(*file_values[path]) for path in paths if not dotted(path).startswith(OPEN)}
    return {path: kind for path, kind in kinds.items() if kind is not None and dotted(path) not in KINDS}


def _kind(value: Any, packaged: bool) -> Kind | None:
    if isinstance(value, bool):
        return TRUTH
    if isinstance(value, int) and packaged:
        return WHOLE
    return NUMBER if isinstance(value, (int, float)) else None


NUMBER = number()
WHOLE = Kind("a whole number", whole(-(2**63)).convert)

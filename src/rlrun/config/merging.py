"""Merge files in order, apply the overrides, and say which of them set each key."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from omegaconf import DictConfig, OmegaConf, flag_override, open_dict
from omegaconf.errors import OmegaConfBaseException

from rlrun.config.files import one_line
from rlrun.config.interpolation import Path, child, children, dotted, leaves, plain, split
from rlrun.config.overrides import Override
from rlrun.config.peers import hint
from rlrun.config.reading import admit_all_resolvers
from rlrun.config.schema import CLOSED, KINDS, OPEN, TRUTH, Kind, converted, instead, number, whole
from rlrun.config.sources import TUNED, Repository
from rlrun.core.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from rlrun.config.composition import Composed


OVERRIDE = "override"  # the label of their layer


class Layer(NamedTuple):
    """What one file or one override put into the config, in the order of merging."""

    label: str
    config_path: str  # "" for an override
    packaged: bool
    content: Any  # a plain tree from the top


def provenance(composed: Composed) -> dict[str, str]:
    """Return for each key of the composed config the file that set it last, or `override`."""
    return {dotted(path): layer.label for path, layer in origins(composed.config, composed.layers).items()}


def origins(config: Any, layers: Sequence[Layer]) -> dict[Path, Layer]:
    """Return the last layer that set each leaf of a config."""
    setters: dict[Path, tuple[int, Layer]] = {}
    for order, layer in enumerate(layers):
        for path, value in leaves(layer.content):
            # Neither an empty block nor `???` takes the place of what is there.
            if path and not (value in ({}, "???") and any(leaf[: len(path)] == path for leaf in setters)):
                setters[path] = order, layer
    layer_of = {}
    for path, _ in leaves(plain(config)):
        candidates = [setters[path[:length]] for length in range(len(path) + 1) if path[:length] in setters]
        if candidates:
            layer_of[path] = max(candidates, key=lambda candidate: candidate[0])[1]
    return layer_of


def merge(repository: Repository, defaults: Sequence[Any]) -> tuple[DictConfig, list[Layer]]:
    """Return the merged files, keys closed, and what each of them put in.

    Raises: ConfigError if a file does not fit what came before it.
    """
    layers = [_layer(repository, default) for default in defaults]
    layers = [_yield_to_own(layer, layers) if layer.config_path.startswith(f"{TUNED}/") else layer for layer in layers]
    config = OmegaConf.create()
    for layer in layers:
        try:
            with flag_override(config, "no_deepcopy_set_nodes", True):  # nothing else uses what is merged in
                config.merge_with(OmegaConf.create(layer.content))
        except OmegaConfBaseException as error:
            raise ConfigError(f"{layer.label}: {one_line(error)}") from error
    OmegaConf.set_struct(config, True)
    for key in OPEN:
        node = OmegaConf.select(config, key, throw_on_missing=False, throw_on_resolution_failure=False)
        if isinstance(node, DictConfig):
            OmegaConf.set_struct(node, False)
    return config, layers


def _layer(repository: Repository, default: Any) -> Layer:
    result = repository.load_config(default.config_path)
    if result is None:
        raise ConfigError(f"there is no config file '{default.config_path}'")
    content = plain(result.config)
    admit_all_resolvers(content)  # another person may have chosen the file
    for key in reversed(split(default.package or "")):
        content = {key: content}
    return Layer(result.path, default.config_path, repository.is_ours(default.config_path), content)


def _yield_to_own(tuned: Layer, layers: Sequence[Layer]) -> Layer:
    """Return a tuned preset without the keys that a user's own file sets, whatever the order of the files."""
    own = {path for layer in layers if not layer.packaged and layer is not tuned for path, _ in leaves(layer.content)}
    content: dict[str, Any] = {}
    for path, value in leaves(tuned.content):
        if not any(path[: len(own_path)] == own_path or own_path[: len(path)] == path for own_path in own):
            node = content
            for key in path[:-1]:
                node = node.setdefault(key, {})
            node[path[-1]] = value
    return tuned._replace(content=content)


def apply(config: DictConfig, override: Override, groups: Sequence[str]) -> None:
    """Change, add or delete what an override says.

    Raises: ConfigError if the key does not exist, or cannot take the value, or a resolver is not trusted.
    """
    admit_all_resolvers({override.key: override.value})
    if "@" in override.key or "/" in override.key:
        raise ConfigError(f"{override.key}: no such group{did_you_mean(override.group, groups)}")
    is_open = any(override.key.startswith(f"{key}.") for key in OPEN)
    if override.sign == "~" or not (override.sign or is_open):
        _find(config, override, groups)
    try:
        if override.sign == "~":
            _delete(config, override)
        else:
            merge = isinstance(override.value, (dict, list))
            OmegaConf.update(
                config, override.key, override.value, merge=merge, force_add=bool(override.sign or is_open)
            )
    except OmegaConfBaseException as error:
        raise ConfigError(f"{override.key}: {_inner(config, override) or one_line(error)}") from error


def _find(config: DictConfig, override: Override, groups: Sequence[str]) -> None:
    """Raise ConfigError, with the nearest match, unless the word's key exists."""
    node = plain(config)
    path = split(override.key)
    for index, key in enumerate(path):
        names = dict(children(node))
        if key not in names:
            if isinstance(node, str) and node.startswith("${"):
                raise ConfigError(f"{override.key}: '{dotted(path[:index])}' is a link to {node}: change that instead")
            if isinstance(node, bool):
                raise ConfigError(f"{override.key}: no such key; '{dotted(path[:index])}' itself is true or false")
            prefix = "".join(f"{part}." for part in path[:index])
            near = did_you_mean(key, [*names, *(groups if not index else ())], prefix)
            what = "no such key" if index or len(path) > 1 else "no such key or group"
            if index == 1 and path[0] in CLOSED:
                raise ConfigError(f"{override.key}: {what}{instead(path[0], key)}")
            part = isinstance(node, dict) and ("_target_" in node or path[:index] == ("callbacks",))
            part = part or override.key == "expect.return"
            near = near or (f"; +{override.key}=… adds one" if part else f"; there are {', '.join(names) or 'none'}")
            raise ConfigError(f"{override.key}: {what}{hint(path, plain(config), near, override.value)}")
        node = names[key]


def _delete(config: DictConfig, override: Override) -> None:
    *parents, last = split(override.key)
    parent = OmegaConf.select(config, dotted(tuple(parents))) if parents else config
    if "=" in override.text and parent[last] != override.value:  # ~key=value deletes only that value
        raise ConfigError(f"~{override.key}: its value is {parent[last]}, not {override.value}")
    if not isinstance(parent, DictConfig):
        raise ConfigError(f"~{override.key}: an entry of a list cannot be deleted; give the whole list")
    with open_dict(parent):
        del parent[last]


def _inner(config: DictConfig, override: Override) -> str:
    """Return a message if a dict that an override gives has an unknown key, or an empty string."""
    node = OmegaConf.select(config, override.key, throw_on_resolution_failure=False)
    if not isinstance(node, DictConfig) or not isinstance(override.value, dict):
        return ""
    for key in override.value:
        if key not in node:
            near = instead(override.key, str(key)) if override.key in CLOSED else did_you_mean(str(key), map(str, node))
            return f"no such key '{key}'{near}"
    return ""


def check_likeness(config: Any, layers: Sequence[Layer]) -> dict[str, Any]:
    """Compare what overrides set with the values that files have there; return whole numbers written as `1e3`.

    Null, interpolations and whole blocks are always accepted. In a packaged file `1` means a whole number and
    `1.0` any; a user's file is read more freely.

    Raises: ConfigError if a value is of another type.
    """
    tree, changed = plain(config), {}
    file_values: dict[Path, tuple[Any, bool]] = {}
    for layer in layers:
        if layer.label != OVERRIDE:
            file_values.update({path: (value, layer.packaged) for path, value in leaves(layer.content)})
    for path, layer in origins(config, layers).items():
        key = dotted(path)
        if layer.label != OVERRIDE or path not in file_values or key in KINDS or key.startswith(OPEN):
            continue
        kind, value = _kind(*file_values[path]), reduce(child, path, tree)
        if kind is None or value is None or (isinstance(value, str) and ("${" in value or value == "???")):
            continue
        result = converted(key, value, kind)
        if type(result) is not type(value):
            changed[key] = result
    return changed


def _kind(value: Any, packaged: bool) -> Kind | None:
    if isinstance(value, bool):
        return TRUTH
    if isinstance(value, int) and packaged:
        return WHOLE
    return NUMBER if isinstance(value, (int, float)) else None


NUMBER = number()
WHOLE = Kind("a whole number", whole(-(2**63)).convert)

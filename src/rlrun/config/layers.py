"""Layers of a composed config: the file or override that set each key."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path as Folder
from typing import TYPE_CHECKING, Any, NamedTuple

from omegaconf import DictConfig, OmegaConf, flag_override
from omegaconf.errors import OmegaConfBaseException

from rlrun.config.files import one_line
from rlrun.config.interpolation import Path, dotted, leaves, nested, plain, split
from rlrun.core.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from rlrun.config.overrides import Override

OVERRIDE = "override"  # label of the layer of overrides


class Layer(NamedTuple):
    """The keys that one file, or all overrides, put into the config."""

    label: str
    config_path: str  # "" for the overrides
    packaged: bool
    content: Any  # a plain tree from the top of the config


@dataclass(frozen=True)
class Composed:
    """A composed config, with the choices and layers that it was merged from."""

    config: DictConfig  # unresolved; its keys are closed
    overrides: list[str]  # of the command line, each key once
    choices: dict[str, Any]  # group -> option, list of options, or None
    layers: list[Layer]  # in the order of merging
    project: Folder  # the user's folder, on sys.path
    preset: str | None = None  # the preset found for the algorithm and environment
    hydra: dict[str, Any] = field(default_factory=dict)  # FOLDERS and GRID, as far as a file or an override sets them


def layer_of_file(label: str, config_path: str, packaged: bool, content: Any, package: str) -> Layer:
    """Return the layer of a file; package: the key below which its content goes."""
    keys = {key: value for key, value in content.items() if key != "defaults"}
    return Layer(label, config_path, packaged, nested(split(package), keys))


def merged(layers: Iterable[Layer]) -> DictConfig:
    """Merge layers in the order of Hydra's defaults list, three times as fast as `hydra.compose`.

    Raises:
        ConfigError: naming the file that does not fit those before it.
    """
    layers = [*layers]
    try:
        tree = merged_trees([layer.content for layer in layers])
        config: DictConfig = _merged_by_omegaconf(layers) if tree is None else OmegaConf.create(tree)
    except OmegaConfBaseException:
        config = _merged_by_omegaconf(layers)  # its error names the file
    config.pop("hydra", None)
    OmegaConf.set_struct(config, True)
    return config


def merged_trees(trees: Sequence[Any]) -> dict[str, Any] | None:
    """Merge trees of keys as OmegaConf does; return None if the merge needs OmegaConf's special rules.

    A later value replaces an earlier one, two blocks of keys are merged, and `???` replaces nothing.
    """
    result: dict[str, Any] = {}
    return result if all(type(tree) is dict and _merge(result, tree) for tree in trees) else None


def _merge(there: dict[Any, Any], new: dict[Any, Any]) -> bool:
    for key, value in new.items():
        if key not in there:
            there[key] = _copy(value)
            continue
        old = there[key]
        if type(old) is dict and type(value) is dict:
            if not _merge(old, value):
                return False
        elif type(value) in (dict, list) and (
            (type(old) in (dict, list) and type(old) is not type(value)) or (isinstance(old, str) and "${" in old)
        ):
            return False  # an error, or a merge with the target of an interpolation
        elif not (isinstance(value, str) and value == "???"):
            there[key] = _copy(value)
    return True


def _copy(value: Any) -> Any:
    return {key: _copy(entry) for key, entry in value.items()} if type(value) is dict else value


def _merged_by_omegaconf(layers: Sequence[Layer]) -> DictConfig:
    config = OmegaConf.create()
    with flag_override(config, "no_deepcopy_set_nodes", True):  # layers share no nodes
        for layer in layers:
            try:
                config.merge_with(layer.content)
            except OmegaConfBaseException as error:
                raise ConfigError(
                    f"{layer.label}: {_clash(plain(config), layer.content) or one_line(error)}"
                ) from error
    return config


def _clash(there: Any, new: Any, here: Path = ()) -> str:
    """Return a message if one tree has a list where the other has keys with values; "" otherwise."""
    if isinstance(there, dict) and isinstance(new, dict):
        return next(filter(None, (_clash(there[key], new[key], (*here, key)) for key in new if key in there)), "")
    if isinstance(there, list) and isinstance(new, dict):
        return f"{dotted(here)}: wanted a list, as there is before, got keys with values"
    if isinstance(there, dict) and isinstance(new, list):
        return f"{dotted(here)}: wanted keys with values, as there are before, got a list"
    return ""


def layer_of_overrides(overrides: Sequence[Override]) -> Layer:
    """Return the layer of overrides that set keys; later ones replace earlier ones."""
    content: dict[str, Any] = {}
    for override in overrides:
        if override.sign == "~":
            continue
        node, (*parents, last) = content, split(override.key)
        for key in parents:
            if not isinstance(node.get(key), dict):
                node[key] = {}
            node = node[key]
        merged = isinstance(override.value, dict) and isinstance(node.get(last), dict)
        value = copy.deepcopy(override.value)  # later overrides may set keys inside; parsed overrides are cached
        node[last] = {**node[last], **value} if merged else value
    return Layer(OVERRIDE, "", False, content)


def provenance(composed: Composed) -> dict[str, str]:
    """Return, for each key of a composed config, the file that set it last, or `override`."""
    return {dotted(path): layer.label for path, layer in origins(composed.config, composed.layers).items()}


@contextmanager
def naming_file(composed: Composed) -> Iterator[None]:
    """Prefix an error about a key with the user's file, if that file set the key and everything below it."""
    try:
        yield
    except RequestError as error:
        key = split(str(error).partition(":")[0])
        setters = origins(composed.config, composed.layers).items()
        labels = {None if layer.packaged else layer.label for path, layer in setters if path[: len(key)] == key}
        if key and len(labels) == 1 and not labels & {None, OVERRIDE}:
            error.args = (f"{labels.pop()}: {error}",)
        raise


def origins(config: Any, layers: Sequence[Layer]) -> dict[Path, Layer]:
    """Return the last layer that set each leaf of a config."""
    setters: dict[Path, tuple[int, Layer]] = {}
    for order, layer in enumerate(layers):
        for path, value in leaves(layer.content):
            # An empty block or `???` does not replace an earlier value.
            if path and not (value in ({}, "???") and any(leaf[: len(path)] == path for leaf in setters)):
                setters[path] = order, layer
    layer_of = {}
    for path, _ in leaves(plain(config)):
        candidates = [setters[path[:length]] for length in range(len(path) + 1) if path[:length] in setters]
        if candidates:
            layer_of[path] = max(candidates, key=lambda candidate: candidate[0])[1]
    return layer_of

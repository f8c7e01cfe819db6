"""Print a config, and read the copy in a run directory."""

import copy
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf._utils import get_omega_conf_dumper
from omegaconf.errors import OmegaConfBaseException

from rlrun.config.files import one_line, parse_yaml
from rlrun.config.interpolation import children, dotted, link_of, locate, mentions, plain, split
from rlrun.config.reading import is_object
from rlrun.core.errors import ConfigError
from rlrun.core.files import read_bytes


def to_yaml(config: Any, resolve: bool = False, package: str | None = None) -> str:
    """Return a config, or its part at `package`, as YAML; arguments as of `select`."""
    node = select(config, resolve, package)
    return _dump(node) if isinstance(node, (dict, list)) else _dump([node]).removeprefix("- ")


def kept(config: Any) -> str:
    """Return the text of a config for a run directory.

    Raises: ConfigError if `load` would not read it.
    """
    parse_yaml(text := to_yaml(config), "the config")
    return text


def select(config: Any, resolve: bool = False, package: str | None = None) -> Any:
    """Return a config, or its part at `package`, as plain data.

    With `resolve`, interpolations are replaced by their values. Links to objects stay, as a link means one shared
    object.

    Raises: ConfigError if there is nothing at `package`, or an interpolation leads nowhere.
    """
    tree = plain(config)
    here = split(package or "")
    place = locate(tree, here)
    if place.beyond:
        raise ConfigError(f"{package}: an attribute of what {dotted(place.path)} builds; the config ends there")
    return _resolved(tree, config, place.path, place.node) if resolve else place.node


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """The C emitter, five times as fast, with OmegaConf's quoting: '1e-3' without quotes would be a number."""


_Dumper.add_representer(str, get_omega_conf_dumper().str_representer)


def _dump(tree: Any) -> str:
    text: str = yaml.dump(tree, Dumper=_Dumper, default_flow_style=False, allow_unicode=True, sort_keys=False)
    return text


def _resolved(tree: Any, config: Any, here: tuple[str, ...], node: Any) -> Any:
    if isinstance(node, Mapping):
        return {key: _resolved(tree, config, (*here, str(key)), entry) for key, entry in node.items()}
    if isinstance(node, list):
        return [_resolved(tree, config, (*here, key), entry) for key, entry in children(node)]
    if not isinstance(node, str) or "${" not in node:
        return node
    if link_of(tree, here, node) is not None:
        place = locate(tree, here)
        if place.beyond or is_object(place.node):
            return node
        return _resolved(tree, config, place.path, copy.deepcopy(place.node))
    if any(locate(tree, target, referrer=here).beyond for target in mentions(node, here, tree)):
        return node
    try:
        value = OmegaConf.select(OmegaConf.create(config), dotted(here))
    except OmegaConfBaseException as error:
        raise ConfigError(f"{dotted(here)}: {one_line(str(error).splitlines()[0])}") from error
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


@functools.lru_cache(8)
def _tree(text: bytes, place: str) -> dict[str, Any]:
    """Parse a saved config; cached, as one command reads it several times."""
    return parse_yaml(text.decode(), place)


def load(path: str | Path) -> DictConfig:
    """Read a saved config without evaluating or building anything in it.

    Raises:
        RunDirError: the file cannot be read.
        ConfigError: it is damaged.
    """
    try:
        config: DictConfig = OmegaConf.create(_tree(read_bytes(Path(path)), str(path)))
        return config
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from error
    except OmegaConfBaseException as error:
        raise ConfigError(f"{path}: {one_line(error)}") from error

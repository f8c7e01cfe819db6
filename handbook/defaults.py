"""Settings before the overrides of a ledger's entry: from the composed config, or the signature of a class."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Sequence
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError

from rlrun.config import compose
from rlrun.config.build import find_target, parameters
from rlrun.config.places import packaged_dir

GROUPS = {path.name for path in packaged_dir().iterdir() if path.is_dir()}
FROM_DATA = "override /env: none"  # in the file of an algorithm that learns from data and acts nowhere
ABSENT: Any = object()


def key_of(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]


@functools.cache
def acts_nowhere(algorithm: str) -> bool:
    path = packaged_dir() / "algorithm" / f"{algorithm}.yaml"
    return path.exists() and FROM_DATA in path.read_text()


def complete(overrides: Sequence[str], env: str = "env=cartpole") -> list[str]:
    """Return overrides with an environment, and without a tuned preset unless they choose one."""
    keys = {key_of(override).partition(".")[0] for override in overrides}
    algorithms = [override.partition("=")[2] for override in overrides if key_of(override) == "algorithm"]
    env = "env=none" if any(map(acts_nowhere, algorithms)) else env
    return [*overrides, *(word for word in (env, "preset=null") if word.partition("=")[0] not in keys)]


def parted(text: str) -> tuple[list[str], list[str]]:
    """Return the choices of groups among overrides, and the others."""
    words = shlex.split(text)
    choices = [word for word in words if key_of(word) in GROUPS]
    return choices, [word for word in words if word not in choices]


def defaults(text: str) -> str:
    """Return the values before the overrides of an entry as YAML, several of them by name; `off` of an addition."""
    choices, others = parted(text)
    if others:
        config = _config(tuple(choices))
        keys = [key_of(word) for word in others if not word.startswith("~")]
        values = {key.rpartition(".")[2]: value for key in keys if (value := _before(config, key))}
        return (
            " ".join(f"{key}={value}" for key, value in values.items()) if len(keys) > 1 else "".join(values.values())
        )
    words = [word for word in choices if key_of(word) not in ("algorithm", "env", "data", "preset")]
    if not words:
        return ""
    if key_of(words[-1]) == "with":
        return "off"
    chosen = compose(complete([word for word in choices if word != words[-1]]), check=False).choices
    return str(chosen[key_of(words[-1])])


@functools.cache
def _config(choices: tuple[str, ...]) -> DictConfig:
    return compose(complete(choices), check=False).config


def _before(config: DictConfig, key: str) -> str:
    above, _, name = key.rpartition(".")
    try:
        value = OmegaConf.select(config, key, default=ABSENT)
    except InterpolationKeyError:  # of an object that is built
        return ""
    if name == "_target_" and value is not ABSENT:
        return str(value).rpartition(".")[2]
    if value is ABSENT:
        node = OmegaConf.select(config, above, default=None) if above else None
        value = _of_class(node, name) if isinstance(node, DictConfig) and "_target_" in node else ABSENT
    return _shown(value)


def _of_class(node: DictConfig, name: str) -> Any:
    """Return the default of an argument that a config leaves to the class."""
    target = find_target(node["_target_"], "_target_")
    known = {parameter.name: parameter.default for parameter in parameters(target)}
    value = known.get(name, ABSENT)
    return ABSENT if value is not ABSENT and callable(value) else value


def _shown(value: Any) -> str:
    """Return a value as YAML on one line; of an object its class, and nothing of what is absent or has parts."""
    if isinstance(value, DictConfig):
        return str(value["_target_"]).rpartition(".")[2] if "_target_" in value else ""
    if isinstance(value, ListConfig | list | tuple):
        return f"[{', '.join(map(_shown, value))}]"
    if value is ABSENT or value == "???":
        return ""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)

"""A user's class in place of a packaged one: `networks.q._target_=my.Net` is enough.

Such a node is marked by three keys. `_replaces_` is the packaged `_target_`. `_optional_` lists the keys that packaged
files set there; those that the user's class does not take are left out. `_wanted_` lists those of them that lead to the
user's own choices, such as `encoder=nature` or `algorithm.recurrent=gru`; a network that cannot take these is refused.
"""

import inspect
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rlrun.config.interpolation import Path, children, dotted, leaves, link_of, plain
from rlrun.config.layers import Layer, origins

KEYS = ("_replaces_", "_optional_", "_wanted_")
# Options that shape the layers of a packaged network; a plain module in place of the layers makes them void.
VOID = (
    *("hidden", "value_hidden", "activation", "layer_norm", "dropout", "init", "core_size", "shared", "spread"),
    *("output_gain", "dueling", "encoder", "core"),
)
# Arguments that a user's network may need, by their names in other libraries -> places in the config.
OFFERED = {
    "env": "env",
    "envs": "env",
    "observation_space": "env.single_observation_space",
    "action_space": "env.single_action_space",
}


def mark(config: DictConfig, layers: Sequence[Layer], groups: Collection[str] = ()) -> None:
    """Mark the nodes whose packaged `_target_` an override or a user's file replaced.

    groups: those of which the user chose an option.
    """
    packaged: dict[Path, Any] = {}
    replaced: dict[Path, Any] = {}
    for layer in layers:
        for path, value in leaves(layer.content):
            if path[-1:] != ("_target_",) or value == "???":  # `???`: the user has to name a class
                continue
            if layer.packaged:
                packaged[path[:-1]] = value
                replaced.pop(path[:-1], None)
            elif value != packaged.get(path[:-1], value):
                replaced[path[:-1]] = packaged[path[:-1]]
    if not replaced:
        return
    setters, tree = origins(config, layers), plain(config)
    for path, target in replaced.items():
        node = OmegaConf.select(config, dotted(path), throw_on_missing=False)
        if isinstance(node, DictConfig):
            values = {str(key): value for key, value in children(plain(node)) if not str(key).startswith("_")}
            optional = [key for key in values if _is_packaged((*path, key), setters)]
            links = {key: link_of(tree, (*path, key), values[key]) for key in optional}
            wanted = [k for k, to in links.items() if to and (dotted(to) in groups or not _is_packaged(to, setters))]
            marks = {"_replaces_": target, "_optional_": optional, **({"_wanted_": wanted} if wanted else {})}
            for key, value in marks.items():
                OmegaConf.update(config, f"{dotted(path)}.{key}", value, force_add=True)


def _is_packaged(path: Path, setters: Mapping[Path, Layer]) -> bool:
    return all(layer.packaged for leaf, layer in setters.items() if leaf[: len(path)] == path)


def taken(params: Sequence[inspect.Parameter], names: Iterable[str]) -> list[str]:
    """Return those names that a class with these parameters takes as keyword arguments."""
    if any(entry.kind is entry.VAR_KEYWORD for entry in params):
        return list(names)
    known = named(params)
    return [name for name in names if name in known]


def named(params: Iterable[inspect.Parameter]) -> list[str]:
    """Return the names of parameters that can be passed by keyword."""
    return [entry.name for entry in params if entry.kind in (entry.POSITIONAL_OR_KEYWORD, entry.KEYWORD_ONLY)]


def wants_number(entry: inspect.Parameter) -> bool:
    """Return whether an argument is a single number, such as `hidden: int` or `hidden=64`; packaged sizes are lists."""
    return type(entry.default) in (int, float) or entry.annotation in (int, float, "int", "float")


def takes_nothing(target: Any) -> bool:
    """Return whether a class only has the constructor of `torch.nn.Module`, which names no arguments."""
    from torch import nn

    return inspect.isclass(target) and target.__init__ is nn.Module.__init__


def is_ours(kind: Any) -> bool:
    """Return whether a class or function is defined in rlrun."""
    return str(kind.__module__).partition(".")[0] == "rlrun"


def is_plain(part: Any) -> bool:
    """Return whether a part is a torch module with its own `forward` but none of rlrun's classes or methods."""
    from torch import nn

    if not isinstance(part, nn.Module) or any(is_ours(kind) for kind in type(part).__mro__):
        return False
    own_forward = type(part).forward is not nn.Module.forward
    return own_forward and not hasattr(part, "act") and not hasattr(part, "codec")


def lacking(part: Any, former: Any) -> str:
    """Return the names of a packaged network's methods that a module lacks, separated by commas."""
    names = vars(former) if hasattr(former, "forward") else ()  # only networks have a `forward`
    methods = [name for name in names if not name.startswith("_") and callable(getattr(former, name))]
    return ", ".join(name for name in methods if not hasattr(part, name))

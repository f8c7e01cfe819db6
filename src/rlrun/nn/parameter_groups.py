"""Parameter groups of an optimizer, by the modules that hold parameters and by the names of these."""

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from rlrun.core.errors import ConfigError, did_you_mean
from rlrun.nn.optimizers import build_optimizer

CHOICE = ("modules", "names", "exclude")
LONGEST = 200  # letters of a pattern; thousands of brackets would take minutes


def grouped(
    network: nn.Module,
    *,
    optimizer: Callable[..., torch.optim.Optimizer],
    groups: Mapping[str, Mapping[str, Any]],
    **settings: Any,
) -> torch.optim.Optimizer:
    """Return an optimizer of a network's parameters, in groups with settings of their own.

    Of several groups that a parameter fits, the settings of later ones count. A schedule changes all learning rates by
    the same factor.

    Args:
        network: is trained.
        optimizer: a partial of one of `torch.optim`.
        groups: by name, `modules` (classes of the modules that hold its parameters), `names` and `exclude` (patterns of
            a parameter's name, of its last part, or of a module around it), and settings such as `weight_decay`.
        settings: of parameters that fit no group with others.

    Raises:
        ConfigError: a group has a setting that the optimizer does not have, or something else is no list or dict.
    """
    if not callable(optimizer):
        raise ConfigError(f"optimizer: wanted {{_target_: torch.optim.…, _partial_: true}}, got {optimizer!r}")
    for name, group in groups.items():
        for key, value in group.items() if isinstance(group, Mapping) else [("", group)]:
            if key in ("", *CHOICE) and (isinstance(value, str) or not isinstance(value, Sequence)):
                wanted = f".{key}: wanted a list" if key else ": wanted a dict"
                raise ConfigError(f"groups.{name}{wanted}, got {value!r}")
            if key in CHOICE and not all(isinstance(text, str) and len(text) <= LONGEST for text in value):
                raise ConfigError(f"groups.{name}.{key}: wanted names of at most {LONGEST} letters")
    members: dict[tuple[str, ...], list[nn.Parameter]] = {(): []}  # by the groups that they fit
    for path, parameter in network.named_parameters():
        if parameter.requires_grad:
            module = network.get_submodule(path.rpartition(".")[0])
            fitting = tuple(name for name, group in groups.items() if _fits(group, path, module))
            members.setdefault(fitting, []).append(parameter)
    parts = [
        {"params": parameters, "name": " ".join(names)} | {k: v for name in names for k, v in _settings(groups[name])}
        for names, parameters in members.items()
        if parameters
    ]
    result = build_optimizer(optimizer, parts, **settings)
    for name, group in groups.items():
        for key, _ in _settings(group):
            if key not in result.defaults:
                hint = did_you_mean(key, (*CHOICE, *result.defaults))
                raise ConfigError(f"groups.{name}: {type(result).__name__} has no setting '{key}'{hint}")
    for part in result.param_groups:
        part["lr_factor"] = 1.0 if part["lr"] == result.defaults["lr"] else part["lr"] / result.defaults["lr"]
    paths = [path for path, _ in network.named_parameters()]
    result.matches = {f"groups.{name}": any(name in names for names in members) for name in groups} | {  # type: ignore[attr-defined]
        f"groups.{name}.exclude: '{pattern}'": any(_named([pattern], path) for path in paths)
        for name, group in groups.items()
        for pattern in group.get("exclude", ())
    }
    return result


def _settings(group: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(key, value) for key, value in group.items() if key not in CHOICE]


def _fits(group: Mapping[str, Any], path: str, module: nn.Module) -> bool:
    kinds = {kind.__name__ for kind in type(module).__mro__}
    of_kind = not kinds.isdisjoint(group.get("modules", kinds))
    return of_kind and _named(group.get("names", ["*"]), path) and not _named(group.get("exclude", ()), path)


def _named(patterns: Sequence[str], path: str) -> bool:
    *above, last = path.split(".")
    texts = [path, last, *(".".join(above[:depth]) for depth in range(1, len(above) + 1))]
    return any(fnmatchcase(text, pattern) for pattern in patterns for text in texts)

"""Parameter groups of an optimizer, chosen by the classes of modules and by the names of parameters."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from rlrun.compile.several import Several
from rlrun.core.errors import ConfigError, did_you_mean, require_number
from rlrun.nn.optimizers import build_optimizer, require_recipe

CHOICE = ("modules", "names", "exclude")


class Choice(NamedTuple):
    """A user's choice of parameters of a network.

    texts: names and patterns that a user wrote.
    matches: whether any parameter fits.
    known: names of the parameters and of the modules around them.
    """

    texts: tuple[str, ...]
    matches: bool
    known: frozenset[str]


def grouped(
    network: nn.Module,
    *,
    optimizer: Callable[..., torch.optim.Optimizer],
    groups: Mapping[str, Mapping[str, Any]],
    **settings: Any,
) -> torch.optim.Optimizer:
    """Return an optimizer of a network's parameters, in groups with settings of their own.

    If a parameter fits several groups, later groups override the settings of earlier ones. A schedule changes all
    learning rates by the same factor. A group's own optimizer steps its parameters.

    Args:
        network: to train.
        optimizer: a partial of one of `torch.optim`.
        groups: by name, `modules` (classes of the modules that hold its parameters), `names` and `exclude` (patterns of
            one part, or several successive parts, of a parameter's path), settings such as `weight_decay`, and
            `optimizer`, another partial; its learning rate is this one's unless it has its own.
        settings: of the optimizer; groups may override them.

    Raises:
        ConfigError: the optimizer lacks a group's setting, or an entry is not the list or dict that it should be.
    """
    require_recipe(optimizer)
    for name, group in groups.items():
        for key, value in group.items() if isinstance(group, Mapping) else [("", group)]:
            if key in ("", *CHOICE) and (isinstance(value, str) or not isinstance(value, Sequence)):
                wanted = f".{key}: wanted a list" if key else ": wanted a dict"
                raise ConfigError(f"groups.{name}{wanted}, got {value!r}")
            if key in CHOICE and not all(isinstance(text, str) for text in value):
                raise ConfigError(f"groups.{name}.{key}: wanted names")
            if key == "optimizer" and (not callable(value) or getattr(value, "func", None) in (grouped, retuned)):
                example = "{_target_: torch.optim.SGD, _partial_: true}"
                raise ConfigError(f"groups.{name}.optimizer: wanted one of torch, as {example}, got {value!r}")
    paths: dict[nn.Parameter, list[str]] = {}
    for path, parameter in network.named_parameters(remove_duplicate=False):
        paths.setdefault(parameter, []).append(path)
    members: dict[tuple[str, ...], list[nn.Parameter]] = {(): []}  # by the groups that they fit
    for parameter, own in paths.items():
        if parameter.requires_grad:
            holders = [network.get_submodule(path.rpartition(".")[0]) for path in own]
            kinds = {kind.__name__ for holder in holders for kind in type(holder).__mro__}
            fitting = tuple(name for name, group in groups.items() if _fits(group, own, kinds))
            members.setdefault(fitting, []).append(parameter)
    taken = inspect.signature(optimizer).parameters
    for key in () if any(argument.kind is argument.VAR_KEYWORD for argument in taken.values()) else settings:
        if key not in taken:
            kind = getattr(getattr(optimizer, "func", optimizer), "__name__", "it")
            raise ConfigError(
                f"optimizer.{key}: {kind} has no such setting; optimizer.optimizer._target_ names the class, which is "
                "torch.optim.SGD with optimizer=sgd"
            )
    result = _built(optimizer, members, groups, settings)
    every = [path for own in paths.values() for path in own]
    known = frozenset(part for path in every for part in path.split("."))
    result.matches = {  # type: ignore[attr-defined]
        f"groups.{name}": Choice(tuple(group.get("names", ())), any(name in names for names in members), known)
        for name, group in groups.items()
    } | {
        f"groups.{name}.{key}: '{pattern}'": Choice((pattern,), _named([pattern], every), known)
        for name, group in groups.items()
        for key in ("names", "exclude")
        for pattern in group.get(key, ())
    }
    return result


def retuned(
    network: nn.Module,
    *,
    optimizer: Callable[..., torch.optim.Optimizer],
    differences: Mapping[str, Any] | None = None,
    fused: bool = True,
    **settings: Any,
) -> torch.optim.Optimizer:
    """Return an optimizer of a network like another one, with some settings of its own, such as its learning rate.

    A schedule of the run's learning rate also applies to this one, times `rate_factor`.

    Args:
        network: to train.
        optimizer: the other one, a partial; groups of `grouped` choose parameters of this network, too.
        differences: settings in which additions differ from it, `optimizer.additions` of a config.
        fused: False = one step takes several kernels, also if the other one is fused; it rounds differently.
        settings: of this optimizer alone.

    Raises:
        ConfigError: `optimizer` is not a recipe of one.
    """
    require_recipe(optimizer)
    if "lr" in settings:
        require_number("lr", settings["lr"], above=0)
    recipe = partial(optimizer, **{**(differences or {}), **settings})
    if not fused:
        recipe.keywords.pop("fused", None)
    result = optimizer_of(network, recipe)
    rate, of_run = recipe.keywords.get("lr"), optimizer.keywords.get("lr")  # type: ignore[attr-defined]
    if rate and of_run:
        result.rate_factor = rate / of_run  # type: ignore[attr-defined]
    return result


def optimizer_of(network: nn.Module, optimizer: Callable[..., torch.optim.Optimizer]) -> torch.optim.Optimizer:
    """Return an optimizer of the parameters of a network that need a gradient.

    Raises:
        ConfigError: `optimizer` is not a recipe of one.
    """
    require_recipe(optimizer)
    if getattr(optimizer, "func", None) in (grouped, retuned):
        return build_optimizer(optimizer, network)
    return build_optimizer(optimizer, [parameter for parameter in network.parameters() if parameter.requires_grad])


def _built(
    optimizer: Callable[..., torch.optim.Optimizer],
    members: Mapping[tuple[str, ...], list[nn.Parameter]],
    groups: Mapping[str, Mapping[str, Any]],
    settings: Mapping[str, Any],
) -> torch.optim.Optimizer:
    """Return one optimizer of all groups; it combines several where a group has its own.

    Raises:
        ConfigError: the optimizer of a group lacks one of its settings.
    """
    parts: dict[int, tuple[Any, list[dict[str, Any]]]] = {id(optimizer): (optimizer, [])}  # by the recipe's id
    recipes = {name: {id(group.get("optimizer", optimizer))} for name, group in groups.items()}
    for names, parameters in members.items():
        own = {key: value for name in names for key, value in _settings(groups[name])}
        recipe = own.pop("optimizer", optimizer)
        if parameters:
            part = {"params": parameters, "name": ".".join(names)} | own
            parts.setdefault(id(recipe), (recipe, []))[1].append(part)
            for name in names:
                recipes[name].add(id(recipe))
    base = parts.pop(id(optimizer))[1]
    built = {id(optimizer): build_optimizer(optimizer, base or [{"params": []}], **settings)}
    rate = built[id(optimizer)].defaults["lr"]
    for key, (recipe, own_parts) in parts.items():
        has_rate = "lr" in getattr(recipe, "keywords", {})
        built[key] = build_optimizer(recipe, own_parts, **({} if has_rate else {"lr": rate}))
    for name, group in groups.items():
        for result in (built[key] for key in recipes[name] if key in built):
            known = ("optimizer", *result.defaults)
            if unknown := [setting for setting, _ in _settings(group) if setting not in known]:
                hint = did_you_mean(unknown[0], (*CHOICE, *known))
                raise ConfigError(f"groups.{name}: {type(result).__name__} has no setting '{unknown[0]}'{hint}")
    for result in built.values():
        taken = inspect.signature(type(result)).parameters.keys() - {"params"}
        # torch checks the settings of an optimizer, but not those of a group
        for part in (part for part in result.param_groups if part.get("name")):
            try:
                build_optimizer(type(result), part["params"], **{name: part[name] for name in taken & part.keys()})
            except (TypeError, ValueError) as error:
                raise ConfigError(f"groups.{part['name']}: {type(result).__name__}: {error}") from error
    for part in (part for result in built.values() for part in result.param_groups):
        part["lr_factor"] = 1.0 if part["lr"] == rate else part["lr"] / (rate or 1.0)
    if not parts:
        return built[id(optimizer)]
    used = [result for key, result in built.items() if base or key in parts]
    every = [part | {"part": number} for number, result in enumerate(used) for part in result.param_groups]
    return build_optimizer(Several, every, optimizers=used)


def _settings(group: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(key, value) for key, value in group.items() if key not in CHOICE]


def _fits(group: Mapping[str, Any], paths: Sequence[str], kinds: set[str]) -> bool:
    of_kind = not kinds.isdisjoint(group.get("modules", kinds))
    return of_kind and _named(group.get("names", ["*"]), paths) and not _named(group.get("exclude", ()), paths)


def _named(patterns: Sequence[str], paths: Sequence[str]) -> bool:
    """Return True if a pattern fits successive parts of one of the paths."""
    texts = set()
    for parts in (path.split(".") for path in paths):
        ends = range(1, len(parts) + 1)
        texts |= {".".join(parts[begin:end]) for end in ends for begin in range(end)}
    return any(fnmatchcase(text, pattern) for pattern in patterns for text in texts)

"""Find the constructor of an environment; describe in one line why it is missing or fails."""

import importlib
import importlib.util
import inspect
import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, find_highest_version, load_env_creator, parse_env_id, registry

from rlrun.core.errors import BuildError, ConfigError, MissingExtra, RequestError, did_you_mean
from rlrun.core.spaces import RULES_STATE

_messages = logging.getLogger("rlrun")

# Packages that register their ids only when they are imported: prefix -> (package, extra).
_FAMILIES = {
    "ALE/": ("ale_py", "atari"),
    "MiniGrid-": ("minigrid", "minigrid"),
    "BabyAI-": ("minigrid", "minigrid"),
}
# Packages that gymnasium's own environments need: module of the entry point -> (package, extra).
_NEEDS = {
    "gymnasium.envs.box2d": ("Box2D", "box2d"),
    "gymnasium.envs.mujoco": ("mujoco", "mujoco"),
}
NO_GAME = "; a search by rules wants a game, as env=tictactoe, or a rlrun.env.Match of yours (docs/games.md)"


def spec_of(id: str) -> EnvSpec:
    """Return the registration of an id; import `module` of a `module:Id` first.

    Raises:
        BuildError: the module, or the environment's own, cannot be imported.
        ConfigError: no environment of that name is registered.
    """
    module, _, name = id.rpartition(":")
    if module:
        _import(module, f"env.id '{id}'")
    for prefix, (package, extra) in _FAMILIES.items():
        if name.startswith(prefix) and name not in registry:
            try:
                gymnasium.register_envs(importlib.import_module(package))
            except ModuleNotFoundError as error:
                raise MissingExtra(f"env.id '{id}'", package, extra) from error
    latest = _with_version(name)
    if latest not in registry:
        prefix = f"{module}:" if module else ""
        own = "" if module else f"; one that a module of yours registers is env.id=MODULE:{name}"
        own = f"; a class is env.target={name}" if own and "." in name and "-v" not in name else own
        raise ConfigError(f"env.id: no environment '{id}' is registered{did_you_mean(name, registry, prefix)}{own}")
    return registry[latest]


def _with_version(name: str) -> str:
    """Complete a name without a version by the newest one."""
    try:
        namespace, base, version = parse_env_id(name)
        newest = find_highest_version(namespace, base) if version is None else None
    except gymnasium.error.Error:
        return name
    return name if newest is None or name in registry else f"{name}-v{newest}"


def _import(module: str, place: str) -> Any:
    try:
        return importlib.import_module(module)
    except Exception as error:
        raise BuildError(f"{place}: importing '{module}' failed: {type(error).__name__}: {error}") from error


def find_target(target: str) -> Callable[..., Any]:
    """Return the class or function at an import path.

    Raises:
        BuildError: the module or the name in it does not exist.
    """
    place = f"env.target '{target}'"
    module_name, _, name = target.rpartition(".")
    if not module_name:
        raise BuildError(f"{place}: wanted an import path such as 'my_package.MyEnv'")
    module = _import(module_name, place)
    factory = getattr(module, name, None)
    if not callable(factory):
        hint = did_you_mean(name, [known for known in vars(module) if not known.startswith("_")], f"{module_name}.")
        fault = "has no" if factory is None else "has no class or function"
        raise BuildError(f"{place}: module '{module_name}' {fault} '{name}'{hint}")
    return factory  # type: ignore[no-any-return]


def lookup(id: str) -> Callable[..., Any]:
    """Return the constructor of a registered id, with the time limit of its registration."""
    spec = spec_of(id)
    creator: Any = spec.entry_point
    if isinstance(creator, str):
        creator = _guarded(f"env.id '{id}'", creator, partial(load_env_creator, creator))
    _quiet()
    # gymnasium's checker checks only the first step, but costs a call at every step.
    build = partial(gymnasium.make, spec, disable_env_checker=True)

    def registered(**kwargs: Any) -> gymnasium.Env[Any, Any]:
        return build(**kwargs)

    registered.__signature__ = _registered_signature(creator, spec)  # type: ignore[attr-defined]
    registered.__module__ = getattr(creator, "__module__", __name__)
    return registered


def _quiet() -> None:
    """Silence the banners of native libraries; log their warnings, except those of old file formats."""
    if ale := sys.modules.get("ale_py"):
        ale.ALEInterface.setLoggerMode(ale.LoggerMode.Error)
    if mujoco := sys.modules.get("mujoco"):
        mujoco.set_mju_user_warning(_warned)


def _warned(text: str) -> None:
    if "deprecated" not in text:
        _messages.warning("mujoco: %s", text)


def _registered_signature(creator: Any, spec: EnvSpec) -> inspect.Signature:
    """Return the signature of an environment's constructor, with defaults of its registration and `gymnasium.make`."""
    arguments = dict(_signature(creator).parameters)
    for name in ("max_episode_steps", "disable_env_checker"):
        arguments.setdefault(name, inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None))
    named = [
        parameter.replace(kind=parameter.KEYWORD_ONLY, default=spec.kwargs.get(name, parameter.default))
        for name, parameter in arguments.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    rest = [parameter for parameter in arguments.values() if parameter.kind is parameter.VAR_KEYWORD]
    return inspect.Signature([*named, *rest])


def _signature(creator: Any) -> inspect.Signature:
    try:
        return inspect.signature(creator)
    except (TypeError, ValueError):  # built in C: any arguments
        anything = inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)
        return inspect.Signature([anything])


def construct(place: str, creator: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    """Call a constructor with the config's arguments.

    Raises:
        BuildError: it does not accept one of them, or it failed.
        MissingExtra: it needs a package that is not installed.
    """
    accepted = _signature(creator).parameters
    if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in accepted.values()):
        for name in map(str, kwargs):
            if name not in accepted:
                hint = NO_GAME if name == RULES_STATE else did_you_mean(name, accepted)
                raise BuildError(f"env.kwargs.{name}: {place} takes no such argument{hint}")
    missing = [
        name
        for name, parameter in accepted.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        and name not in kwargs
    ]
    return _guarded(place, getattr(creator, "__module__", None) or "", partial(creator, **kwargs), missing)


def _guarded(place: str, module: str, function: Callable[[], Any], missing: list[str] | None = None) -> Any:
    """Call a function that runs an environment's own code; describe an error in one line."""
    try:
        return function()
    except RequestError:
        raise
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        for prefix, (package, extra) in _NEEDS.items():
            if module.startswith(prefix) and importlib.util.find_spec(package) is None:
                raise MissingExtra(place, package, extra) from error
        raise BuildError(f"{place} cannot be imported: {_line(error)}") from error
    except Exception as error:
        if missing:
            raise BuildError(f"env.kwargs: {place} wants {', '.join(missing)}") from error
        raise BuildError(f"env.kwargs: {place} could not be made: {_line(error)}{_way_out(module, error)}") from error


def _way_out(module: str, error: Exception) -> str:
    """Return a hint if a search wants a game, or if MUJOCO_GL names a library that MuJoCo cannot load."""
    if isinstance(error, TypeError) and f"argument '{RULES_STATE}'" in str(error):
        return NO_GAME
    chosen = os.environ.get("MUJOCO_GL")
    if chosen is None or not module.startswith("gymnasium.envs.mujoco") or "mujoco" in sys.modules:
        return ""
    return f"; MUJOCO_GL={chosen} needs a library that is not there: egl wants libEGL and a driver, osmesa libOSMesa"


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]

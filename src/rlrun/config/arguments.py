"""The parameters of classes and functions, and checks that a config's arguments fit them."""

import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from rlrun.config import replaced
from rlrun.core.errors import BuildError, ConfigError, did_you_mean, is_number, shown

KINDS: dict[Any, str] = {  # of values that a config can hold
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    type(None): "null",
    Mapping: "keys with values",
    Sequence: "a list",
    Collection: "a list",
    Callable: "a part with a `_target_`",
}
ALIAS = {dict: Mapping, list: Sequence, tuple: Sequence, set: Collection, frozenset: Collection}


def parameters(target: Any, *, subclasses: bool = False) -> list[inspect.Parameter]:
    """Return the parameters of a class or function, with those of base classes that it passes `**options` to.

    Classes of rlrun pass them on; subclasses of these are assumed to, if `subclasses` is true.
    """
    params = dict(inspect.signature(target).parameters)
    classes = target.__mro__ if inspect.isclass(target) else (target,)
    hands_on = any(replaced.is_ours(owner) for owner in (classes if subclasses else classes[:1]))
    for above in classes[1:] if hands_on else ():
        options = [name for name, parameter in params.items() if parameter.kind is parameter.VAR_KEYWORD]
        if options and "__init__" in vars(above) and above is not object:
            del params[options[0]]
            inherited = dict(inspect.signature(above).parameters)
            for name in _leading(inherited)[: len(_leading(params))]:  # passed to the base class by position
                del inherited[name]
            params = {**inherited, **params}
    return [*params.values()]


def _leading(params: dict[str, inspect.Parameter]) -> list[str]:
    """Return the names of the positional arguments without a default."""
    positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return [name for name, entry in params.items() if entry.kind is positional and entry.default is entry.empty]


def _refused(refused: list[str], known: list[str], text: str, place: str) -> str:
    listed = f"; it takes {', '.join(known) or 'none'}"
    if len(refused) > 1:
        return f"{place}: {text} takes no arguments {', '.join(map(repr, refused))}{listed}"
    return f"{place}.{refused[0]}: {text} takes no argument '{refused[0]}'{did_you_mean(refused[0], known) or listed}"


def check_arguments(target: Any, text: str, place: str, *, count: int, names: Iterable[str], partial: bool) -> None:
    """Compare given arguments with a signature.

    Raises: BuildError for an argument that is unknown, missing or given twice.
    """
    try:
        params = parameters(target)
    except (ValueError, TypeError):  # some classes written in C have no signature
        return
    kinds = {parameter.kind for parameter in params}
    named = [param for param in params if param.kind in (param.POSITIONAL_OR_KEYWORD, param.KEYWORD_ONLY)]
    positional = [param for param in params if param.kind in (param.POSITIONAL_ONLY, param.POSITIONAL_OR_KEYWORD)]
    if count > len(positional) and inspect.Parameter.VAR_POSITIONAL not in kinds:
        raise BuildError(f"{place}: {text} takes {len(positional)} positional arguments, got {count} in `_args_`")
    taken = {param.name for param in positional[:count]}
    for name in (names := list(names)):
        if name in taken:
            raise BuildError(f"{place}.{name}: {text} gets '{name}' twice, by name and in `_args_`")
    known = [param.name for param in named]
    if inspect.Parameter.VAR_KEYWORD not in kinds and (refused := [name for name in names if name not in known]):
        raise BuildError(_refused(refused, known, text, place))
    if partial:
        return
    for param in (*positional, *(keyword for keyword in named if keyword not in positional)):
        if param.default is param.empty and param.name not in taken and param.name not in names:
            raise BuildError(f"{place}: {text} needs the argument '{param.name}'")


@functools.cache
def hints_of(target: Any) -> Mapping[str, frozenset[Any]]:
    """Return the kinds of values that each argument of an rlrun class or function takes, if all kinds are known."""
    functions = [target]
    if inspect.isclass(target):
        functions = [vars(kind)["__init__"] for kind in reversed(target.__mro__) if "__init__" in vars(kind)]
    hints: dict[str, frozenset[Any]] = {}
    for function in (entry for entry in functions if inspect.isfunction(entry)):
        for name in inspect.signature(function).parameters:
            hints.pop(name, None)
        if not replaced.is_ours(function):
            continue
        try:
            annotations = typing.get_type_hints(function)
        except (NameError, TypeError):  # the annotation has names that only a type checker imports
            continue
        kinds = {name: frozenset(_kinds(annotation)) for name, annotation in annotations.items()}
        hints |= {name: some for name, some in kinds.items() if some <= {*KINDS}}
    return hints


def _kinds(annotation: Any) -> Iterable[Any]:
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return [kind for part in typing.get_args(annotation) for kind in _kinds(part)]
    bare = annotation if origin is None else origin
    return [ALIAS.get(bare, bare)]


def fitted(value: Any, kinds: Collection[Any]) -> Any:
    """Return a config value converted to one of these kinds, such as 1e3 to an int; objects stay as they are.

    Where a part (a callable) is wanted, only null is refused here; the caller of the part checks the rest.

    Raises:
        ConfigError: the value fits none of the kinds.
    """
    if value is None:
        fits = type(None) in kinds
    elif Callable in kinds:
        return value
    elif isinstance(value, bool):
        fits = bool in kinds
    elif is_number(value):
        if float not in kinds and int in kinds and math.isfinite(value) and value == int(value):
            return int(value)
        fits = float in kinds
    elif isinstance(value, str):
        fits = str in kinds
    elif isinstance(value, dict):
        fits = Mapping in kinds
    elif isinstance(value, list):
        fits = Sequence in kinds or Collection in kinds
    else:
        return value
    if not fits:
        wanted = " or ".join(text for kind, text in KINDS.items() if kind in kinds)
        raise ConfigError(f"wanted {wanted}, got {shown(value)}")
    return value

"""From the text of a `_target_` to the class or function it names, unless it may never be one."""

import importlib
import importlib.util
import inspect
import pkgutil
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from rlrun.core import renames
from rlrun.core.errors import BuildError, RlrunError, did_you_mean
from rlrun.security import trust
from rlrun.security.trust import within

_ABSENT: Any = object()


def find_target(text: Any, place: str) -> Any:
    """Import what a `_target_` names.

    Raises: BuildError if it does not exist or is refused.
    """
    if not isinstance(text, str) or not all(part.isidentifier() for part in text.split(".")):
        raise BuildError(f"{place}: `_target_` wants a path such as my_package.MyClass, got {text!r}")
    trust.admit(text, text, place)
    name, *rest = text.split(".")
    target: Any = _import(name, text, place)
    for index, part in enumerate(rest):
        name = f"{name}.{part}"
        try:
            inner = getattr(target, part, _ABSENT)
        except RlrunError:
            raise
        except Exception as error:  # a module that imports on first use
            raise BuildError(f"{place}: importing {name} failed: {explain(error)}") from error
        if inner is _ABSENT and isinstance(target, ModuleType) and _is_module(name):
            inner = _import(name, text, place)
        if inner is _ABSENT:
            raise BuildError(f"{place}: {_unknown(target, '.'.join(rest[: index + 1]), text)}")
        target = inner
        if isinstance(target, ModuleType):
            trust.admit(target.__name__, text, place)
    if not callable(target):
        raise BuildError(f"{place}: {text} is a {type(target).__name__}, wanted a class or function")
    trust.admit_object(target, text, place)
    return target


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _import(name: str, text: str, place: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (now := renames.target(str(error.name))) != error.name:
            raise BuildError(f"{place}: {text}: {error.name} is called {now} now") from error
        if error.name != name:
            raise BuildError(f"{place}: {text} needs the package '{error.name}', which is not installed") from error
        near = did_you_mean(name, [module.name for module in pkgutil.iter_modules()])
        raise BuildError(f"{place}: {text}: there is no module '{name}'{near}") from error
    except RlrunError:
        raise
    except Exception as error:
        raise BuildError(f"{place}: importing {name} failed: {explain(error)}") from error


def _unknown(owner: Any, path: str, text: str) -> str:
    last = path.rpartition(".")[2]
    names = [name for name in dir(owner) if not name.startswith("_")]
    if not isinstance(owner, ModuleType):
        return f"{text}: {owner.__qualname__} has no '{last}'{did_you_mean(last, names)}"
    names += [module.name for module in pkgutil.iter_modules(getattr(owner, "__path__", []))]
    near = did_you_mean(last, names, f"{owner.__name__}.")
    # Somebody else's module of the same name, found first, is the usual reason.
    return f"{text}: {owner.__name__} ({getattr(owner, '__file__', None) or 'a folder'}) has no '{last}'{near}"


def explain(error: BaseException) -> str:
    """Return an exception's message on one line, with its class where the message alone says little."""
    message = " ".join(str(error).split())
    telling = isinstance(error, (ValueError, TypeError, RlrunError)) and message
    return message if telling else f"{type(error).__name__}: {message}".rstrip(": ")


def parameters(target: Any, *, heirs: bool = False) -> list[inspect.Parameter]:
    """Return what a target takes; our own classes hand `**options` on to the class above, and likely their heirs."""
    params = dict(inspect.signature(target).parameters)
    classes = target.__mro__ if inspect.isclass(target) else (target,)
    hands_on = any(within(str(owner.__module__), ["rlrun"]) for owner in (classes if heirs else classes[:1]))
    for above in classes[1:] if hands_on else ():
        options = [name for name, parameter in params.items() if parameter.kind is parameter.VAR_KEYWORD]
        if options and "__init__" in vars(above) and above is not object:
            del params[options[0]]
            inherited = dict(inspect.signature(above).parameters)
            for name in _leading(inherited)[: len(_leading(params))]:  # which it gives the class above by position
                del inherited[name]
            params = {**inherited, **params}
    return [*params.values()]


def _leading(params: dict[str, inspect.Parameter]) -> list[str]:
    """Return the names of arguments by position without a default."""
    positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return [name for name, entry in params.items() if entry.kind is positional and entry.default is entry.empty]


def _refused(refused: list[str], known: list[str], text: str, place: str) -> str:
    listed = f"; it takes {', '.join(known) or 'none'}"
    overrides = " ".join(f"~{place}.{name}" for name in refused)
    ours = text.split(".")[0] == "rlrun"  # else a file of ours may give what another class need not take
    if len(refused) > 1:
        message = f"{place}: {text} takes no arguments {', '.join(map(repr, refused))}{listed}"
        return message if ours else f"{message}; {overrides} leaves them out"
    message = (
        f"{place}.{refused[0]}: {text} takes no argument '{refused[0]}'{did_you_mean(refused[0], known) or listed}"
    )
    return message if ours else f"{message}; {overrides} leaves it out"


def lacks(part: Any, protocol: Any) -> str:
    """Return what a class or an object has not of a protocol, as the end of a message; of a class, which methods."""
    attributes = () if inspect.isclass(part) else protocol.__annotations__  # which a constructor may set
    names = [name for name in (*vars(protocol), *attributes) if not name.startswith("_")]
    missing = [name for name in names if not hasattr(part, name)]
    return f"; it lacks {', '.join(missing)}: {protocol.__doc__.splitlines()[0]}" if missing else ""


def check_arguments(target: Any, text: str, place: str, *, count: int, names: Iterable[str], partial: bool) -> None:
    """Compare given arguments with a signature.

    Raises: BuildError for an argument that is unknown, missing or given twice.
    """
    try:
        params = parameters(target)
    except (ValueError, TypeError):  # some classes written in C have none
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

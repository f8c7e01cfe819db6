"""Name the user's key in an error that a part raises about one of its arguments.

A part's error names its own argument: `latent: wanted a whole number from 1, got 0`. If the node has that value by a
link, `latent: ${algorithm.latent}`, the user should read `algorithm.latent: …`. Constructors also call recipes and pass
arguments on. So the part is found in the stack of the error: it is the innermost constructor named by the config that
has an argument of this name with the value from the config.
"""

import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rlrun.config import replaced
from rlrun.config.arguments import ALIAS, KINDS
from rlrun.config.interpolation import LinkError, Path, dotted, locate, split
from rlrun.core.errors import shown

_NAMED = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*)(?=:| must |=)")  # the argument at the start of a message
_ABSENT: Any = object()
_PLAIN = (str, int, float, bool, list, dict)
PART = "a part {_target_: …}"


class Given(NamedTuple):
    """A class or function with the path of its node and the arguments that the config gives it, by name."""

    target: Any
    path: Path
    arguments: Mapping[str, Any]


def key_of(tree: Any, path: Path, argument: str) -> str:
    """Return the key that holds an argument of the part at a path.

    argument: its name, or a path inside it such as `terms.actor`.
    """
    own = (*path, *split(argument))
    try:
        place = locate(tree, own)
    except LinkError:
        return dotted(own)
    return dotted(own if place.beyond and place.links else place.path + place.beyond)


def named(error: BaseException, tree: Any, parts: Sequence[Given]) -> str:
    """Return an error's message with the argument at its start replaced by the user's key.

    A message without such an argument is prefixed with the path of the part.

    parts: the part under construction, then recipes that it may have called.
    """
    message, path = str(error), parts[0].path
    begin = _NAMED.match(message)
    name, _, inner = begin[1].partition(".") if begin else ("", "", "")
    if begin and (found := _owner(_frames(error), name, parts)) is not None:
        part, own = found
        key, asking = key_of(tree, part.path, own + begin[1][len(name) :]), dotted((*part.path, own))
        another = isinstance(tree.get(key), Mapping) and key != asking  # a block: say which key reads it
        return key + message[begin.end() :] + (f"; {asking} reads it" if another else "")
    whole = name in tree and (inner or not isinstance(tree[name], Mapping))  # the message names a key already
    placed = whole or message.startswith(tuple(f"{path[0]}{mark}" for mark in ".:[ "))
    return message if placed else f"{dotted(path)}: {message}"


def _owner(frames: Sequence[types.FrameType], name: str, parts: Sequence[Given]) -> tuple[Given, str] | None:
    """Return the part whose argument an error is about, and the argument's name; None if it is ambiguous."""
    holders = [frame for frame in frames if _argument(frame, name) is not _ABSENT]
    value = _argument(holders[0], name) if holders else _ABSENT
    for frame in frames:
        found: list[tuple[Given, str]] = []
        for part in _calls([frame], parts):
            given = part.arguments
            alike = [own for own in given if _alike(value, given[own])]
            # Another function's argument of this name may stem from any argument with the same value.
            if name in alike and (frame is holders[0] or len(alike) == 1):
                found.append((part, name))
            else:
                found += [(part, own) for own in alike if given[own] is value and isinstance(value, (list, dict))][:1]
        if found:
            return found[0] if len(found) == 1 else None
    return None


def misfit(error: BaseException, tree: Any, parts: Sequence[Given]) -> str:
    """Explain a TypeError or AttributeError by a config value that does not fit an annotation; "" if all fit.

    The innermost constructor with such an argument counts.
    """
    if not isinstance(error, (TypeError, AttributeError)):
        return ""
    for part in _calls(_frames(error), parts):
        for name, annotation in _annotations(part.target).items():
            found = _unfit(annotation, part.arguments.get(name), name) if name in part.arguments else None
            if found is not None:
                return _refusal(tree, part.path, found)
    return ""


def not_a_part(given: Given, tree: Any) -> str:
    """Return a message for an argument that is text or a number but should be a module or function; "" for none."""
    for name, annotation in _annotations(given.target).items():
        value = given.arguments.get(name)
        if isinstance(value, (str, int, float)) and all(map(_is_part, _kinds(annotation))):
            return _refusal(tree, given.path, (name, _words(annotation), value))
    return ""


def _refusal(tree: Any, path: Path, found: tuple[str, str, Any]) -> str:
    argument, wanted, value = found
    return f"{key_of(tree, path, argument)}: wanted {wanted}, got {shown(value)}"


def _frames(error: BaseException) -> list[types.FrameType]:
    """Return the stack frames of an error, innermost first."""
    frames, traceback = [], error.__traceback__
    while traceback is not None:
        frames.append(traceback.tb_frame)
        traceback = traceback.tb_next
    return frames[::-1]


def _calls(frames: Sequence[types.FrameType], parts: Sequence[Given]) -> Iterator[Given]:
    """Yield the parts whose constructors are among the frames."""
    codes: dict[Any, list[Given]] = {}
    for part in parts:
        for function in _functions(part.target):
            codes.setdefault(function.__code__, []).append(part)
    for frame in frames:
        yield from codes.get(frame.f_code, ())


def _functions(target: Any) -> list[Any]:
    """Return the Python functions that run when a target is called, including constructors of base classes."""
    owners = target.__mro__ if inspect.isclass(target) else ()
    found = [vars(owner).get("__init__") for owner in owners] or [target]
    return [inner for inner in map(inspect.unwrap, filter(None, found)) if inspect.isfunction(inner)]


def _argument(frame: types.FrameType, name: str) -> Any:
    """Return the value of an argument in a frame, also from its `**options`."""
    information = inspect.getargvalues(frame)
    if name in information.args:
        return information.locals.get(name, _ABSENT)
    options = information.locals.get(information.keywords or "")  # the function may have rebound this name
    return options.get(name, _ABSENT) if isinstance(options, Mapping) else _ABSENT


def _alike(value: Any, given: Any) -> bool:
    return value is given or (isinstance(given, (*_PLAIN, tuple)) and type(value) is type(given) and value == given)


def _annotations(target: Any) -> dict[str, Any]:
    """Return the annotations of arguments of rlrun's and torch's functions; others are skipped."""
    annotations: dict[str, Any] = {}
    for function in reversed(_functions(target)):
        if replaced.is_ours(function) or function.__module__.startswith("torch."):
            try:
                annotations |= typing.get_type_hints(function)
            except (NameError, TypeError):  # the annotation has names that only a type checker imports
                continue
    return annotations


def _unfit(annotation: Any, value: Any, name: str) -> tuple[str, str, Any] | None:
    """Return the place of a config value that does not fit an annotation, the wanted type, and the value."""
    kinds = _kinds(annotation)
    if not isinstance(value, _PLAIN) or Any in kinds or any(isinstance(kind, typing.TypeVar) for kind in kinds):
        return None
    for kind in kinds:
        origin, inner = typing.get_origin(kind) or kind, typing.get_args(kind)
        if origin is typing.Literal and value in inner:
            return None
        if not isinstance(origin, type) or not _is_a(value, origin):
            continue
        if isinstance(value, dict) and len(inner) == 2:
            return next(filter(None, (_unfit(inner[1], entry, f"{name}.{key}") for key, entry in value.items())), None)
        return None
    return name, _words(annotation), value


def _is_a(value: Any, kind: type) -> bool:
    if isinstance(value, list) and kind is tuple:  # YAML has no tuples
        return True
    if isinstance(value, (bool, int)) and kind in (int, float):
        return not isinstance(value, bool)
    try:
        return isinstance(value, kind)
    except TypeError:  # a protocol
        return False


def _is_part(kind: Any) -> bool:
    """Return whether an annotation is a torch module or a callable; None counts too, for optional arguments."""
    origin = typing.get_origin(kind) or kind
    classes = origin.__mro__ if isinstance(origin, type) else ()
    return origin in (Callable, type(None)) or any(owner.__module__.startswith("torch.nn.") for owner in classes)


def _kinds(annotation: Any) -> list[Any]:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [kind for part in typing.get_args(annotation) for kind in _kinds(part)]
    return [annotation]


def _words(annotation: Any) -> str:
    return " or ".join(dict.fromkeys(map(_word, _kinds(annotation))))


def _word(kind: Any) -> str:
    origin = typing.get_origin(kind) or kind
    if origin is typing.Literal:
        return ", ".join(map(str, typing.get_args(kind)))
    origin = ALIAS.get(origin, origin)
    return PART if _is_part(kind) and origin is not type(None) else KINDS.get(origin, f"a {origin.__name__}")

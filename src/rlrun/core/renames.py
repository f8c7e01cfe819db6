"""Names of earlier versions: the table `config/renames.yaml`, for what is read from files and checkpoints."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

LONGEST = 2  # parts of a name in the section `keys`
DEEPEST = 4  # parts of a name in the section `targets`
PAIR, PRESET, TUNED = "pair", "preset", "tuned"  # config groups
_CHOICE = re.compile(r"^([+~]*)(\w+)(|[@=].*)$", re.DOTALL)


@cache
def _table() -> Mapping[str, Any]:
    import yaml  # completion does without

    text = (Path(__file__).parents[1] / "config" / "renames.yaml").read_text(encoding="utf-8")
    table: Mapping[str, Any] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return table


def table(section: str) -> Mapping[str, Any]:
    """Return a section of the table: removed, keys, groups, options, values or targets."""
    names: Mapping[str, Any] = _table()[section]
    return names


def last(path: Sequence[str]) -> str:
    """Return today's name of the last entry of a config key's path."""
    names = table("keys")
    renamed = [names.get(".".join(path[-count:])) for count in range(min(LONGEST, len(path)), 0, -1)]
    renamed += [names.get(f"/{path[0]}")] if len(path) == 1 else []
    return next((str(name) for name in renamed if name), path[-1])


def key(path: Sequence[str]) -> tuple[str, ...]:
    """Return the path of a config key with today's names."""
    return tuple(last(path[: end + 1]) for end in range(len(path)))


def removed(path: Sequence[str]) -> str | None:
    """Return what replaces a config key that was removed; None for other keys."""
    patterns = {tuple(pattern.split(".")): now for pattern, now in table("removed").items()}
    return next((str(now) for pattern, now in patterns.items() if _fits(path, pattern)), None)


def _fits(path: Sequence[str], pattern: Sequence[str]) -> bool:
    return len(path) == len(pattern) and all(part in ("*", name) for name, part in zip(path, pattern, strict=True))


def stored_as(name: str, stored: Collection[str]) -> str:
    """Return the name under which a checkpoint holds a part: its own one, else one of an earlier version.

    Args:
        name: today's name of the part, a dotted path of config keys.
        stored: the names in the checkpoint.
    """
    if name in stored:
        return name
    return next((before for before in stored if ".".join(key(before.split("."))) == name), name)


def target(name: str) -> str:
    """Return today's path of a class or function, or of a module that holds some."""
    parts = name.split(".")
    for end in range(min(DEEPEST, len(parts)), 0, -1):
        if now := table("targets").get(".".join(parts[:end])):
            return ".".join([now, *parts[end:]])
    return name


def group(name: str, chosen: Any = None) -> str:
    """Return today's name of a config group; a pair was the numbers of a preset without its other choices."""
    if name == PAIR:
        return PRESET if chosen in (None, "null") else TUNED
    return str(table("groups").get(name, name))


def folders(name: str) -> list[str]:
    """Return what a group's folder was called."""
    return [before for before, now in table("groups").items() if now == name]


def choices(overrides: Sequence[str]) -> list[str | None]:
    """Return overrides with today's names of groups; None for one that says nothing any more.

    That is `pair=null` next to a preset that is named.
    """
    renamed = [_CHOICE.sub(lambda m: m[1] + group(m[2], m[3][1:] or None) + m[3], override) for override in overrides]
    void = (PAIR, f"{PAIR}=null") if any(re.match(rf"\+?{PRESET}=(?!null$)", now) for now in renamed) else ()
    return [None if before.lstrip("+~") in void else now for before, now in zip(overrides, renamed, strict=True)]


def recorded(overrides: Iterable[str]) -> list[str]:
    """Return the overrides that a run was started with in today's names."""
    return [_recorded(override) for override in choices([*overrides]) if override is not None]


def _recorded(override: str) -> str:
    name, equals, value = override.partition("=")
    bare = name.lstrip("+~")
    path = key(bare.split("."))
    value = str(table("options").get(f"{bare}/{value}", table("values").get(path[-1], {}).get(value, value)))
    return f"{name.removesuffix(bare)}{'.'.join(path)}{equals}{value}"

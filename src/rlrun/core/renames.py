"""Names of earlier versions: the table `config/renames.yaml`, for what is read from files and checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any


@cache
def table(section: str) -> dict[str, Any]:
    """Return a section of the table: keys, groups, options, values or targets."""
    import yaml  # completion does without

    path = Path(__file__).parents[1] / "config" / "renames.yaml"
    return dict(yaml.safe_load(path.read_text(encoding="utf-8"))[section])


def key(path: Sequence[str]) -> tuple[str, ...]:
    """Return the path of a config key with today's names."""
    names = list(path)
    for end in range(1, len(names) + 1):
        for start in range(end):
            if now := table("keys").get(".".join(path[start:end])):
                names[end - 1] = now
                break
    return tuple(names)


def part(name: str) -> str:
    """Return today's name of a part of a checkpoint, which is a dotted path of config keys."""
    return ".".join(key(name.split(".")))


def target(name: str) -> str:
    """Return today's path of a class or function."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        if now := table("targets").get(".".join(parts[:end])):
            return ".".join([now, *parts[end:]])
    return name


def group(name: str) -> str:
    """Return today's name of a config group."""
    return str(table("groups").get(name, name))


def folders(name: str) -> list[str]:
    """Return what a group's folder was called."""
    return [before for before, now in table("groups").items() if now == name]

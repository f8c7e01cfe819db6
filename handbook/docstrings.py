"""Docstrings in parts: what a page quotes of them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

SECTION = re.compile(r"^(Args|Returns|Raises|Attributes|Yields):$", re.MULTILINE)
ENTRY = re.compile(r"^    (\w[\w, *]*): (.*)$")


def summary(thing: object) -> str:
    """Return the first paragraph of a docstring as one line."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def arguments(thing: Callable[..., Any]) -> dict[str, str]:
    """Return what is said of each argument of a class or function; a class's bases speak where it is silent."""
    found: dict[str, str] = {}
    for owner in reversed(inspect.getmro(thing) if inspect.isclass(thing) else (thing,)):
        for documented in (vars(owner).get("__init__") if inspect.isclass(owner) else None, owner):
            found |= _entries(inspect.cleandoc(getattr(documented, "__doc__", None) or ""))
    return found


def _entries(text: str) -> dict[str, str]:
    parts = SECTION.split(text)
    entries: dict[str, str] = {}
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        if title not in ("Args", "Attributes"):
            continue
        names: list[str] = []
        for line in body.splitlines():
            if entry := ENTRY.match(line):
                names = [name.strip(" *") for name in entry[1].split(",")]
                entries |= dict.fromkeys(names, entry[2])
            elif line.startswith("     ") and names:
                entries |= {name: f"{entries[name]} {line.strip()}" for name in names}
            elif line.strip():
                break
    return entries

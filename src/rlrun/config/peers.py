"""What a name of another library is called here: the source of hints and of `docs/migration.md`."""

from __future__ import annotations

import re
from collections import ChainMap
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from rlrun.config.files import read_yaml
from rlrun.config.places import packaged_dir
from rlrun.config.schema import KINDS
from rlrun.config.tree import Path as Keys
from rlrun.config.tree import child, children, split

GYM_ID = re.compile(r".+-v\d+|.+/.+")  # of an environment
BLOCKS = ("algorithm", "memory", "stop", "evaluation", "checkpoint", "env", "log")
SHOWN = 6  # algorithms that a hint names


class Row(NamedTuple):
    """An override, what other libraries call it, and what differs."""

    override: str
    names: tuple[str, ...]
    differs: str


@cache
def rows() -> tuple[Row, ...]:
    """Return the table of `peers.yaml`."""
    table = read_yaml(Path(__file__).with_suffix(".yaml"), "peers.yaml")
    parts = {override: text.partition(" | ") for override, text in table.items()}
    return tuple(Row(override, tuple(names.split()), differs) for override, (names, _, differs) in parts.items())


def hint(path: Keys, tree: Any, near: str = "") -> str:
    """Return what an unknown key may mean: a name of another library, of another block, or of another algorithm.

    Args:
        path: of the unknown key.
        tree: the plain config.
        near: a hint by likeness, taken where no name is the same.
    """
    options = [row for name in dict.fromkeys((path[-1], path[0])) for row in rows() if name in row.names]
    fitting = [row for row in options if _exists(row.override, tree)]
    if fitting:
        return f" (did you mean '{fitting[0].override}'?)" + (f"; {fitting[0].differs}" if fitting[0].differs else "")
    key, last = ".".join(path), path[-1]
    same = [candidate for candidate in (last, *(f"{block}.{last}" for block in BLOCKS)) if _exists(candidate, tree)]
    if same and key not in same:
        return f" (did you mean '{same[0]}'?)"
    for candidate in (key, f"algorithm.{last}", *(row.override for row in options)):
        if names := [name for name, keys in _algorithms() if _exists(candidate, keys)]:
            several = ", …" if len(names) > SHOWN else ""
            return f"; {candidate} is a key of algorithm={', '.join(names[:SHOWN])}{several}"
    return f"; it is {options[0].override} where that exists" if options else near


def override_of(option: str, value: str, algorithm: str | None = None) -> str | None:
    """Return the override that an option such as `--learning-rate 1e-3` of another library stands for.

    Args:
        option: with its dashes.
        value: "" = not known. Where the number means something else here, `…` stands for it.
        algorithm: of several rows for one name, the first counts whose key it has.
    """
    name = option.removeprefix("--").replace("-", "_")
    same = [key for key in (name, *(f"{block}.{name}" for block in BLOCKS)) if key in KINDS]
    options = [row for row in rows() if name in row.names] or [Row(key, (), "") for key in same[:1]]
    tree = dict(_algorithms()).get(algorithm or "", {})
    of_it = [row for row in options if row.override.startswith("algorithm.") and _exists(row.override, tree)]
    options = of_it or options
    if not options:
        return None
    key, differs = options[0].override, options[0].differs
    if key == "env.id" and not GYM_ID.fullmatch(value):
        key = "env"
    if key[0] in "+-~" or "=" in key.removesuffix("=NAME"):
        return None if value.lower() in ("false", "0", "none") else key
    return f"{key.split('=')[0]}={'…' if differs or not value else value}"


def markdown() -> str:
    """Return the table of `docs/migration.md`."""
    lines = [f"| {', '.join(f'`{name}`' for name in row.names)} | `{row.override}` | {row.differs} |" for row in rows()]
    return "\n".join(("| there | here | what differs |", "| --- | --- | --- |", *lines))


def _exists(override: str, tree: Any) -> bool:
    """Return True if an override fits a config: its key is there, or it needs none."""
    if override[0] in "+-":
        return True
    for key in split(override.lstrip("~").split("=")[0]):
        if key not in dict(children(tree)):
            return False
        tree = child(tree, key)
    return True


@cache
def _algorithms() -> list[tuple[str, Any]]:
    """Return the packaged algorithms by name, each with the keys of its file and of those that it starts from."""
    files = {file.stem: read_yaml(file, file.name) for file in sorted((packaged_dir() / "algorithm").glob("*.yaml"))}

    def block(name: str) -> dict[str, Any]:
        parents = [block(item) for item in files[name].get("defaults", ()) if str(item) in files]
        return dict(ChainMap(files[name].get("algorithm", {}), *parents))

    return [(name, {"algorithm": block(name)}) for name in files]

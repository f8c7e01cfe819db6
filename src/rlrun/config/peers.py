"""Names of other libraries and their equivalents here: the source of hints and of `docs/migration.md`."""

import re
from collections import ChainMap
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from rlrun.config.files import read_yaml
from rlrun.config.interpolation import Path as Keys
from rlrun.config.interpolation import child, children, dotted, leaves, split
from rlrun.config.places import packaged_dir
from rlrun.config.schema import KINDS
from rlrun.core.errors import did_you_mean, edits, nearest, shown

GYM_ID = re.compile(r".+-v\d+|.+/.+")  # an environment's id in Gymnasium
BLOCKS = ("algorithm", "memory", "memory.sampler", "stop", "evaluation", "checkpoint", "env", "log")
CHOICES = ("memory", "encoder", "optimizer")  # groups whose options have different keys
ON_POLICY = "; on-policy algorithms have no replay memory, a rollout has algorithm.horizon steps of num_envs"
SHOWN = 6  # largest number of algorithms in a hint


class Row(NamedTuple):
    """An override, its names in other libraries, and the differences."""

    override: str
    names: tuple[str, ...]
    differs: str


@cache
def rows() -> tuple[Row, ...]:
    """Return the table of `peers.yaml`."""
    table = read_yaml(Path(__file__).with_suffix(".yaml"), "peers.yaml")
    parts = {override: text.partition(" | ") for override, text in table.items()}
    return tuple(Row(override, tuple(names.split()), differs) for override, (names, _, differs) in parts.items())


def hint(path: Keys, tree: Any, near: str = "", value: Any = None) -> str:
    """Return a hint for an unknown key: a similar key, or the key of another option, library or algorithm.

    Args:
        path: of the unknown key.
        tree: the plain config.
        near: a hint by similarity, used if no name is the same.
        value: of the key; a row of the table may be about one value, `name=value`. Of a dict, the keys count.
    """
    key, last = ".".join(path), path[-1]
    inner = [*value] if isinstance(value, Mapping) else [f"{last}={value if isinstance(value, str) else shown(value)}"]
    if meant := _mistyped(path, tree):
        return f" (did you mean '{meant}'?)"
    if path[0] == "memory" and _exists("algorithm.horizon", tree):
        return ON_POLICY
    if last.startswith("_"):  # of every part
        return near
    chosen = [f"{group}={name}" for group in CHOICES for name, trees in _options(group) if _in_one(key, trees)]
    if (
        names := []
        if _exists(key, tree)
        else chosen or [f"+with={name}" for name, keys in _files("with").items() if _exists(key, keys)]
    ):
        return f"; it is a key of {', '.join(names[:SHOWN])}"
    own = any(_exists(f"{block}.{last}", tree) for block in BLOCKS if block.split(".")[0] == path[0])
    if path[0] in CHOICES and not own and (elsewhere := _elsewhere(path[0], last)):
        return elsewhere
    options = _rows_of(*map(str, inner)) or _rows_of(last, *(() if path[0] in tree else path[:1]))
    beside = [f"{dotted(path[:-1])}.{row.override.rpartition('.')[2]}" for row in options if path[1:]]
    below = [dotted((path[0], *inside)) for inside, _ in leaves(tree.get(path[0])) if inside[-1:] == (last,)]
    for candidate in (*beside, *(below if len(below) == 1 else ())):
        if candidate != key and _exists(candidate, tree):
            return f" (did you mean '{candidate}'?)"
    fitting = [row for row in options if row.override != key and _exists(row.override, tree)]
    if fitting:
        return f" (did you mean '{fitting[0].override}'?)" + (f"; {fitting[0].differs}" if fitting[0].differs else "")
    same = [candidate for candidate in (last, *(f"{block}.{last}" for block in BLOCKS)) if _exists(candidate, tree)]
    if same and key not in same:
        return f" (did you mean '{same[0]}'?)"
    for candidate in (key, f"algorithm.{last}", *(row.override for row in options)):
        if names := [name for name, keys in _algorithms() if _exists(candidate, keys)]:
            several = ", …" if len(names) > SHOWN else ""
            return f"; {candidate} is a key of algorithm={', '.join(names[:SHOWN])}{several}"
        if _exists(candidate, {"memory": _files("memory")["replay"]}) and _exists("algorithm.horizon", tree):
            return ON_POLICY
    return f"; it is {options[0].override} where that exists" if options else near


def _mistyped(path: Keys, tree: Any) -> str | None:
    """Return the config key that a mistyped path means; each name may have one typing error in six letters."""
    right: list[str] = []
    for part in path:
        names = [str(name) for name, _ in children(tree)]
        near = part if part in names else nearest(part, names)
        if near is None or edits(part, near) > max(1, len(part) // 6):
            return None
        right.append(near)
        tree = child(tree, near)
    return None if tuple(right) == tuple(path) else ".".join(right)


def _options(group: str) -> Iterator[tuple[str, list[Any]]]:
    """Yield the packaged files of a group by name, each with the additions that it includes."""
    for name, content in _files(group).items():
        entries = [entry for entry in content.get("defaults", ()) if isinstance(entry, Mapping)]
        included = [str(value) for entry in entries for key, value in entry.items() if "/with" in str(key)]
        yield name, [{group: content}, *(_files("with")[item] for item in included if item in _files("with"))]


def _elsewhere(group: str, last: str) -> str:
    """Return the options of a group that have a key of this name at any depth; "" if none has."""
    places: dict[str, list[str]] = {}
    for name, trees in _options(group):
        for path in (path for tree in trees for path, _ in leaves(tree.get(group)) if path[-1:] == (last,)):
            places.setdefault(dotted((group, *path)), []).append(f"{group}={name}")
    place, names = next(iter(places.items()), ("", []))
    return f"; {place} is a key of {', '.join(dict.fromkeys(names[:SHOWN]))}" if names else ""


def _in_one(key: str, trees: Sequence[Any]) -> bool:
    return any(_exists(key, tree) for tree in trees)


def near_addition(option: str, options: Collection[str], algorithm: str | None) -> str:
    """Return the addition that an unknown name probably means, as the end of a message.

    Args:
        option: a name, perhaps of another library, such as per.
        options: the existing additions.
        algorithm: the override for an algorithm of this name, if there is one.
    """
    meant = override_of(option, "") or next((name for name in options if name.startswith(f"{option}_")), None)
    near = f" (did you mean '{meant}'?)" if meant else did_you_mean(option, options)
    return near + (f"; {algorithm} chooses the algorithm" if algorithm else "")


def override_of(option: str, value: str, algorithm: str | None = None) -> str | None:
    """Translate an option of another library, such as `--learning-rate 1e-3`, into an override.

    Args:
        option: with its dashes.
        value: "" = not known. `…` in the result stands for a number that has another meaning here.
        algorithm: if several rows fit, the first one whose key this algorithm has is used.
    """
    name = option.removeprefix("--").replace("-", "_")
    same = [key for key in (name, *(f"{block}.{name}" for block in BLOCKS)) if key in KINDS]
    same = same or [*filter(None, [_mistyped((name,), dict.fromkeys(KINDS))])]
    off = value.lower() in ("false", "0", "none")
    exact = _rows_of(f"{name}={'false' if off else value}")
    options = exact or _rows_of(name) or [Row(key, (), "") for key in same[:1]]
    tree = dict(_algorithms()).get(algorithm or "", {})
    of_it = [row for row in options if row.override.split(".")[0] not in tree or _exists(row.override, tree)]
    options = of_it or ([] if exact else options)
    if not options:
        return None
    key, differs = options[0].override, options[0].differs
    if key == "env.id" and not GYM_ID.fullmatch(value):
        key = "env"
    if key[0] in "+-~" or "=" in key.removesuffix("=NAME"):
        return None if off and not exact else key
    return f"{key.split('=')[0]}={'…' if differs or not value else value}"


def markdown() -> str:
    """Return the table of `docs/migration.md`."""
    lines = [f"| {', '.join(f'`{name}`' for name in row.names)} | `{row.override}` | {row.differs} |" for row in rows()]
    return "\n".join(("| there | here | what differs |", "| --- | --- | --- |", *lines))


def _exists(override: str, tree: Any) -> bool:
    """Return True if an override fits a config: its key exists, or it needs none."""
    if override[0] in "+-":
        return True
    for key in split(override.lstrip("~").split("=")[0]):
        if key not in dict(children(tree)):
            return False
        tree = child(tree, key)
    return True


def _rows_of(*names: str) -> list[Row]:
    """Return the rows of the first name, then those of the others."""
    return [row for name in dict.fromkeys(names) for row in rows() if name in row.names]


@cache
def _files(group: str) -> dict[str, Any]:
    """Return the packaged files of a group by name."""
    return {file.stem: read_yaml(file, file.name) for file in sorted((packaged_dir() / group).glob("*.yaml"))}


@cache
def _algorithms() -> list[tuple[str, Any]]:
    """Return the packaged algorithms by name, with their keys and those of the files that they inherit from."""
    files = _files("algorithm")

    def block(name: str, part: str) -> ChainMap[str, Any]:
        parents = [block(item, part) for item in files[name].get("defaults", ()) if str(item) in files]
        return ChainMap(files[name].get(part, {}), *parents)

    return [(name, {part: block(name, part) for part in ("algorithm", "callbacks")}) for name in files]

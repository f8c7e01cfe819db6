"""What `init:` and `load:` of a config say: which kinds, which names, under which names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from rlrun.config import Composed
from rlrun.config.origins import origins
from rlrun.config.tree import plain
from rlrun.errors import ConfigError, did_you_mean

KINDS = ("weights", "optimisers", "numbers", "memory")
LOAD = "load"  # the other two words, skip and reinit, both mean: as built anew


@dataclass(frozen=True)
class Settings:
    """What to take over.

    Attributes:
        source: as the config has it.
        kinds: kind -> whether it is loaded where no pattern says otherwise.
        parts: pattern -> whether it is loaded; the last that matches counts.
        rename: name (or pattern with one `*`) in the parent -> here; the last that matches counts.
        lenient: what does not fit begins anew, in place of being refused.
    """

    source: str
    kinds: Mapping[str, bool]
    parts: Mapping[str, bool]
    rename: Mapping[str, str]
    lenient: bool

    def explicit(self, name: str) -> bool | None:
        """Return what the last pattern that matches a name says; None where none does."""
        flags = [loads for pattern, loads in self.parts.items() if matches(pattern, name)]
        return flags[-1] if flags else None

    def loads(self, name: str, kind: str) -> bool:
        """Tell whether a name of this kind is to be taken over."""
        explicit = self.explicit(name)
        return self.kinds[kind] if explicit is None else explicit

    def require_met(self, names: Iterable[str], paths: Iterable[str]) -> None:
        """Refuse a pattern, and a new name, that is about nothing.

        Raises:
            ConfigError: with the nearest name.
        """
        names, paths = list(names), list(paths)
        for new in self.rename.values():
            if not any(matches(new, name) for name in [*paths, *names]):
                near = did_you_mean(new.removesuffix(".*"), [*paths, *names])
                raise ConfigError(f"init.rename: this run has nothing named '{new}'{near}")
        for pattern in self.parts:
            if not any(matches(pattern, name) for name in names):
                near = did_you_mean(pattern.removesuffix(".*"), [*paths, *names])
                raise ConfigError(f"init.parts: '{pattern}' matches nothing that this run could take over{near}")

    def renamed(self, names: Iterable[str]) -> dict[str, str]:
        """Return each name of the parent with its name here; a name that was given to it goes before one it had.

        Raises:
            ConfigError: a renaming is about nothing, or two things would get one name.
        """
        names = list(names)
        new_names: dict[str, str] = {}
        for old, new in self.rename.items():
            meant = {name: new_name for name in names if (new_name := _rename(old, new, name)) is not None}
            if not meant:
                raise ConfigError(
                    f"init.rename: the parent holds nothing named '{old}'{did_you_mean(old.removesuffix('.*'), names)}"
                )
            new_names |= meant
        taken: dict[str, str] = {}
        for name, new_name in new_names.items():
            if new_name in taken:
                raise ConfigError(f"init.rename: both '{taken[new_name]}' and '{name}' would be '{new_name}'")
            taken[new_name] = name
        return {name: new_names.get(name, name) for name in names if name in new_names or name not in taken}


def read(composed: Composed) -> Settings | None:
    """Return what a config wants taken over; None where it starts from nothing.

    Raises:
        ConfigError: settings contradict each other, or there is nothing that they could be about.
    """
    tree = plain(composed.config)
    init, load = tree.get("init") or {}, tree.get("load") or {}
    if init.get("from") is None:
        if init.get("parts") or init.get("rename"):
            raise ConfigError("init.from: a value is needed where init.parts or init.rename is given, or --from RUN")
        return None
    kinds = {kind: init[kind] == LOAD for kind in KINDS}
    setters = origins(composed.config, composed.layers)
    for kind, wanted in load.items():
        if wanted is None or wanted == kinds[kind]:
            continue
        setter = setters.get(("init", kind))
        if wanted or (setter is not None and not setter.packaged):  # the packaged word may give way
            raise ConfigError(
                f"load.{kind}={str(wanted).lower()} and init.{kind}={init[kind]} contradict each other; leave one away"
            )
        kinds[kind] = wanted
    parts = {pattern: word == LOAD for pattern, word in init["parts"].items()}
    return Settings(init["from"], kinds, parts, init["rename"], init["mismatch"] != "refuse")


def matches(pattern: str, name: str) -> bool:
    """Tell whether a pattern is about a name: it is its name, that of something around it, or a glob."""
    return f"{name}.".startswith(f"{pattern}.") or fnmatchcase(name, pattern) or fnmatchcase(f"{name}.", pattern)


def _rename(old: str, new: str, name: str) -> str | None:
    if old.count("*") != new.count("*") or old.count("*") > 1:
        raise ConfigError(f"init.rename: '{old}: {new}': wanted names, or one * on both sides")
    if "*" in old:
        match = re.fullmatch(re.escape(old).replace(r"\*", "(.+)"), name)
        return None if match is None else new.replace("*", match[1])
    return new + name[len(old) :] if f"{name}.".startswith(f"{old}.") else None


def as_resolved(settings: Settings) -> dict[str, Any]:
    """Return settings in the words of the config, short forms spelt out."""
    word = {True: LOAD, False: "skip"}
    return {
        **{kind: word[loads] for kind, loads in settings.kinds.items()},
        "parts": {pattern: word[loads] for pattern, loads in settings.parts.items()},
        "rename": dict(settings.rename),
        "mismatch": "skip" if settings.lenient else "refuse",
    }

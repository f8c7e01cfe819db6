"""Plugins: installed packages whose entry points add config files, classes and resolvers for `${name:…}`.

    [project.entry-points."rlrun.plugins"]
    walker = "walker"          # the package walker, with walker/conf/
    [project.entry-points."rlrun.resolvers"]
    twice = "walker.numbers:twice"

A plugin is imported only when a config names something in it.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from rlrun.core.errors import printable

GROUP, RESOLVERS = "rlrun.plugins", "rlrun.resolvers"
FOLDER = "conf"
# A plugin is a package of its own.
FOREIGN = {"rlrun", "torch", "gymnasium", "numpy", "omegaconf", *sys.stdlib_module_names}

_warned: set[tuple[str, str]] = set()
_known: dict[str, Any] = {}  # the entry points as last read, and the stamp of the installed packages then


@dataclass(frozen=True)
class Plugin:
    """One entry point.

    Attributes:
        name: of the entry point.
        module: the package that it names, or a module in one.
        package: name of the installed distribution; empty if unknown.
        version: of the distribution.
        folder: of its config files; None if the plugin is excluded.
        problem: why it is excluded, in one line, or None.
    """

    name: str
    module: str
    package: str = ""
    version: str = ""
    folder: Path | None = None
    problem: str | None = None

    @property
    def top(self) -> str:
        """Its top-level package."""
        return self.module.split(".")[0]

    def broken(self, problem: str) -> Plugin:
        """Return a copy that is excluded because of a problem."""
        return replace(self, folder=None, problem=problem)


def installed() -> list[Plugin]:
    """Return all plugins, sorted by name; of several with one name, the first package in alphabetical order counts."""
    plugins: list[Plugin] = []
    for plugin in sorted(_entries(), key=lambda entry: (entry.name, entry.package)):
        first = next((earlier for earlier in plugins if earlier.name == plugin.name), None)
        if first is not None:
            plugins.append(plugin.broken(f"it is called like the one of {first.package or first.module}, which counts"))
        else:
            plugins.append(_located(plugin))
    return plugins


def resolvers() -> dict[str, str]:
    """Return name -> import path of each resolver; of several with one name, the first package by name counts."""
    _entries()
    return dict(_known["resolvers"])


def warn_of_broken(plugins: Iterable[Plugin]) -> None:
    """Warn of each excluded plugin, once in a process."""
    for plugin in plugins:
        if plugin.problem is not None and (plugin.name, plugin.problem) not in _warned:
            _warned.add((plugin.name, plugin.problem))
            text = printable(f"plugin '{plugin.name}' is ignored: {plugin.problem}")
            logging.getLogger("rlrun").warning("%s", text)


def _entries() -> list[Plugin]:
    key = metadata.entry_points, _installations()
    if _known.get("key") != key:
        plugins = []
        for entry in metadata.entry_points(group=GROUP):
            about, package, version = getattr(entry, "dist", None), "", ""
            with suppress(OSError):  # an interrupted installation may lack metadata
                package, version = (str(getattr(about, name, None) or "") for name in ("name", "version"))
            plugins.append(Plugin(entry.name, entry.value.split(":")[0].strip(), package, version))
        functions = sorted(metadata.entry_points(group=RESOLVERS), key=lambda entry: entry.value, reverse=True)
        _known.update(key=key, plugins=plugins, resolvers={of.name: of.value.replace(":", ".") for of in functions})
    return list(_known["plugins"])


def _installations() -> tuple[tuple[str, int], ...]:
    """Return a stamp that changes with the installed packages; reading their metadata takes ten times as long."""
    stamps = ((place, os.stat(place).st_mtime_ns) for place in sys.path if os.path.isdir(place))
    return tuple(stamp for stamp in stamps if _holds_packages(*stamp))


@lru_cache(1024)
def _holds_packages(place: str, changed: int) -> bool:
    """Return True if a folder has metadata of packages; most working directories have none."""
    return any(name.endswith((".dist-info", ".egg-info", ".egg")) for name in os.listdir(place))


def _located(plugin: Plugin) -> Plugin:
    if plugin.top in FOREIGN:
        return plugin.broken(f"its entry names '{plugin.module}', which is not a package of its own")
    try:
        place = _home(plugin.module)
    except Exception as error:  # finders of editable installations run code of their own
        return plugin.broken(f"looking for '{plugin.module}' fails: {' '.join(str(error).split())}")
    if place is None:
        return plugin.broken(f"no package '{plugin.module}'")
    folder = place if place.name == FOLDER else place / FOLDER
    if not folder.is_dir():
        return plugin.broken(f"there is no {folder}/")
    return replace(plugin, folder=folder.resolve())


def _home(module: str) -> Path | None:
    """Return the folder of a package or module without importing it, or None."""
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None or not spec.submodule_search_locations:
        return None
    place = Path(next(iter(spec.submodule_search_locations)))
    for number, part in enumerate(rest, 1):
        if (place / part).is_dir():
            place /= part
        elif number < len(rest) or not (place / f"{part}.py").is_file():
            return None
    return place

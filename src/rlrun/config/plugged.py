"""Config files of plugins: which of them can be read, and which hide others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rlrun.config.files import read_yaml
from rlrun.config.places import ConfigFolder, search_path
from rlrun.core.errors import ConfigError
from rlrun.security import plugins


def readable_places(config_dir: Path | None = None, *, packaged: Path | None = None) -> list[ConfigFolder]:
    """Return the search path without plugins that have an unreadable file; warn of each.

    One bad file excludes the whole plugin: half a plugin would not be what was installed.

    Raises:
        ConfigError: `config_dir` is not a folder.
    """
    installed = plugins.installed()
    plugins.tell_broken(installed)
    places = search_path(config_dir, packaged=packaged, installed=installed)
    faults = {place: fault(place.path) for place in places if place.plugin is not None}
    plugins.tell_broken(plugins.Plugin(place.plugin or "", "", problem=text) for place, text in faults.items())
    return [place for place in places if faults.get(place) is None]


def fault(folder: Path) -> str | None:
    """Return what is wrong with the first config file of a folder that cannot be read."""
    for path in sorted(folder.rglob("*.yaml")):
        try:
            read_yaml(ConfigFolder(folder).inside(str(path.relative_to(folder))))
        except ConfigError as error:
            return str(error)
    return None


def brought(folder: Path) -> list[str]:
    """Return the config files of a folder: `algorithm/walk`, `env/hill`."""
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml"))


class Hidden(NamedTuple):
    """A config file that is never read, as another one of its name is found first."""

    config_path: str
    by: ConfigFolder
    place: ConfigFolder


def hidden(places: Sequence[ConfigFolder]) -> Iterator[Hidden]:
    """Yield which files of plugins and of rlrun are hidden by those of a plugin; the user's own hide on purpose."""
    first: dict[str, ConfigFolder] = {}
    for place in (candidate for candidate in places if candidate.packaged or candidate.plugin is not None):
        for config_path in brought(place.path):
            by = first.setdefault(config_path, place)
            if by is not place:
                yield Hidden(config_path, by, place)

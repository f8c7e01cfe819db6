"""The search path of config files and the options on it, found without parsing YAML."""

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from rlrun.config import plugins
from rlrun.core.errors import ConfigError, printable
from rlrun.runs.directory import in_a_run

_messages = logging.getLogger("rlrun")
_projects: list[str] = []  # folders that `add_to_path` put on sys.path, the last one first


class ConfigFolder(NamedTuple):
    """A folder of config files: packaged with rlrun, from a plugin, or the user's own."""

    path: Path
    packaged: bool = False
    plugin: str | None = None

    @property
    def owner(self) -> str:
        """The owner of the folder, as messages name it; "" for rlrun itself."""
        return "" if self.packaged else f"plugin {self.plugin}" if self.plugin else str(self.path)


class Offer(NamedTuple):
    """An option of a config group: the first comment of its file, and its folder."""

    line: str
    place: ConfigFolder


def packaged_dir() -> Path:
    """Return rlrun's own config folder: inside the installed package, or at the top of a checkout."""
    inside = Path(__file__).parents[1] / "conf"
    return inside if inside.is_dir() else Path(__file__).parents[3] / "conf"


def project_dir(config_dir: Path | None = None) -> Path:
    """Return the user's project folder: the parent of `--config-dir`, or the working directory."""
    return Path(config_dir).resolve().parent if config_dir else Path.cwd()


def search_path(
    config_dir: Path | None = None, *, installed: Sequence[plugins.Plugin] | None = None
) -> list[ConfigFolder]:
    """Return the folders that are searched for config files; the first match wins.

    installed: the plugins, if they are already known.

    Raises: ConfigError if `config_dir` is not a folder.
    """
    ours = packaged_dir().resolve()
    by_path = {path: ConfigFolder(path) for path in own_dirs(config_dir)}
    for plugin in plugins.installed() if installed is None else installed:
        if plugin.folder is not None:
            by_path.setdefault(plugin.folder, ConfigFolder(plugin.folder, plugin=plugin.name))
    # In a checkout of rlrun ./conf is the packaged folder itself, not a user's.
    return [place for place in by_path.values() if place.path != ours] + [ConfigFolder(ours, packaged=True)]


def own_dirs(config_dir: Path | None = None) -> list[Path]:
    """Return the user's own config folders: `--config-dir`, then `./conf`, unless it lies in a run or a sweep.

    Config files can call any code, so those inside a run are read only if the run is trusted.

    Raises: ConfigError if `config_dir` is not a folder.
    """
    if config_dir is not None and not Path(config_dir).is_dir():
        raise ConfigError(f"--config-dir {config_dir}: there is no such folder")
    folders = [Path(config_dir)] if config_dir is not None else []
    here = Path.cwd() / "conf"
    if here.is_dir() and not in_a_run(here):
        folders.append(here)
    return [folder.resolve() for folder in folders]


def add_to_path(project: Path) -> None:
    """Make the user's own classes importable.

    The project goes last on sys.path, so that its `random.py` or `torch/` cannot silently replace an installed package.
    If one hides a module of the project, the error names the file that was found. Projects of earlier calls come after
    this one. A run directory is not added, as it could contain a plugin.

    Raises: ConfigError if a module of an earlier project is loaded, and this project has another of the same name.
    """
    place, earlier = str(project), [known for known in _projects if known in sys.path]
    if earlier[:1] == [place] or in_a_run(project):
        return
    others = [known for known in earlier if known != place]
    modules = list(sys.modules.items()) if others else ()
    loaded = [getattr(module, "__file__", None) for name, module in modules if name != "__main__"]
    for file, other in [(file, other) for file in loaded if file for other in others]:
        if Path(file).is_relative_to(other) and (own := project / os.path.relpath(file, other)).is_file():
            way_out = "each project needs a process of its own"
            raise ConfigError(f"{own} cannot be imported beside {file}, which this process has imported; {way_out}")
    if place in earlier or place not in sys.path:
        _projects[:] = [place, *(known for known in earlier if known != place)]
        sys.path[:] = [*(known for known in sys.path if known not in _projects), *_projects]


def group_names(config_dir: Path | None = None) -> list[str]:
    """Return the names of all config groups."""
    names = set()
    for place in search_path(config_dir):
        with os.scandir(place.path) as entries:
            names |= {entry.name for entry in entries if entry.is_dir() and entry.name[0] not in "._"}
    return sorted(names)


def choices(group: str, config_dir: Path | None = None) -> dict[str, str]:
    """Return each option of a group with the first comment of its file."""
    return {name: offer.line for name, offer in offers(group, search_path(config_dir)).items()}


def offers(group: str, places: Sequence[ConfigFolder]) -> dict[str, Offer]:
    """Return each option of a group; of files with the same name, the first on the search path counts."""
    options: dict[str, Offer] = {}
    for place in places:
        for entry in sorted((place.path / group).glob("*.yaml")):
            options.setdefault(entry.stem, Offer(first_comment(entry), place))
    return dict(sorted(options.items()))


def first_comment(path: str | Path) -> str:
    """Return the first comment at the top of a config file, without the package header."""
    with open(path, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            text = line.strip()
            if text and not text.startswith("#"):
                break
            comment = text.lstrip("# ")
            if comment and not comment.startswith("@"):
                return comment
    return ""


def readable_places(config_dir: Path | None = None) -> list[ConfigFolder]:
    """Return the search path without plugins that have an unreadable file; warn of each.

    One bad file excludes the whole plugin, so that a plugin is never used in part.

    Raises:
        ConfigError: `config_dir` is not a folder.
    """
    installed = plugins.installed()
    plugins.warn_of_broken(installed)
    places = search_path(config_dir, installed=installed)
    here = Path.cwd() / "conf"
    if here.is_dir() and here.resolve() not in [place.path for place in places]:
        _warn(f"{here} is not read, as it lies in a run or a sweep; --config-dir {here} reads it")
    faults = {place: fault(place.path) for place in places if place.plugin is not None}
    plugins.warn_of_broken(plugins.Plugin(place.plugin or "", "", problem=text) for place, text in faults.items())
    return [place for place in places if faults.get(place) is None]


@cache
def _warn(message: str) -> None:
    """Log a warning, once in a process."""
    _messages.warning("%s", printable(message))


def fault(folder: Path) -> str | None:
    """Return the error of the first unreadable config file in a folder, or None."""
    from rlrun.config.files import read_yaml

    for path in sorted(folder.rglob("*.yaml")):
        try:
            read_yaml(path)
        except ConfigError as error:
            return str(error)
    return None


class Hidden(NamedTuple):
    """A config file that is never read, because another of the same name comes earlier on the search path."""

    config_path: str
    by: ConfigFolder
    place: ConfigFolder


def hidden(places: Sequence[ConfigFolder]) -> Iterator[Hidden]:
    """Yield files of plugins and of rlrun that a plugin's file hides; the user's own may hide them on purpose."""
    first: dict[str, ConfigFolder] = {}
    for place in (candidate for candidate in places if candidate.packaged or candidate.plugin is not None):
        for path in sorted(place.path.rglob("*.yaml")):
            config_path = path.relative_to(place.path).with_suffix("").as_posix()
            by = first.setdefault(config_path, place)
            if by is not place:
                yield Hidden(config_path, by, place)

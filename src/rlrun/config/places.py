"""Where config files lie: the search path, and what it offers without reading any YAML."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from rlrun.errors import ConfigError

PLUGINS = "rlrun.plugins"  # the entry-point group; each entry names a package that holds config files


class Place(NamedTuple):
    """A folder of config files, and whether it is the one that comes with rlrun."""

    path: Path
    packaged: bool = False


def packaged_dir() -> Path:
    """Return the config folder that comes with rlrun: inside a wheel, or at the top of a checkout."""
    inside = Path(__file__).parents[1] / "conf"
    return inside if inside.is_dir() else Path(__file__).parents[3] / "conf"


def project_dir(config_dir: Path | None = None) -> Path:
    """Return the user's project: the parent of `--config-dir`, or the folder of the command."""
    return Path(config_dir).resolve().parent if config_dir else Path.cwd()


def search_path(config_dir: Path | None = None, *, packaged: Path | None = None) -> list[Place]:
    """Return the folders in which config files are looked for; the first match wins.

    Raises: ConfigError if `config_dir` is not a folder.
    """
    ours = Path(packaged or packaged_dir()).resolve()
    own: list[Path] = []
    if config_dir is not None:
        own.append(Path(config_dir).resolve())
        if not own[0].is_dir():
            raise ConfigError(f"--config-dir {config_dir}: there is no such folder")
    if (Path.cwd() / "conf").is_dir():
        own.append((Path.cwd() / "conf").resolve())
    own += plugin_dirs()
    # In a checkout of rlrun ./conf is the packaged folder itself, and nobody's own.
    return [Place(path) for path in dict.fromkeys(own) if path != ours] + [Place(ours, packaged=True)]


def plugin_dirs() -> list[Path]:
    """Return the config folders of installed plugins; a broken plugin is left out with a warning."""
    found = []
    for entry in sorted(metadata.entry_points(group=PLUGINS), key=lambda entry: entry.name):
        try:
            found.append(_plugin_dir(entry.value))
        except Exception as error:
            logging.getLogger("rlrun").warning("plugin '%s' is left out: %s", entry.name, error)
    return found


def _plugin_dir(module: str) -> Path:
    spec = importlib.util.find_spec(module.split(":")[0])
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"no package '{module}'")
    package = Path(next(iter(spec.submodule_search_locations)))
    return (package / "conf" if (package / "conf").is_dir() else package).resolve()


def add_to_path(project: Path) -> None:
    """Make the user's own classes importable.

    Last on the path: a `random.py` or `torch/` in the project must not silently replace an installed
    package. The other way round the user is told which file was found instead.
    """
    if str(project) not in sys.path:
        sys.path.append(str(project))


def group_names(config_dir: Path | None = None, *, packaged: Path | None = None) -> list[str]:
    """Return the names of all config groups."""
    found = set()
    for place in search_path(config_dir, packaged=packaged):
        with os.scandir(place.path) as entries:
            found |= {entry.name for entry in entries if entry.is_dir() and entry.name[0] not in "._"}
    return sorted(found)


def choices(group: str, config_dir: Path | None = None, *, packaged: Path | None = None) -> dict[str, str]:
    """Return each option of a group with the first comment of its file."""
    found: dict[str, str] = {}
    for place in search_path(config_dir, packaged=packaged):
        folder = place.path / group
        if folder.is_dir():
            with os.scandir(folder) as entries:
                for entry in entries:
                    name, extension = os.path.splitext(entry.name)
                    if extension == ".yaml" and name not in found:
                        found[name] = first_comment(entry.path)
    return dict(sorted(found.items()))


def first_comment(path: str | Path) -> str:
    """Return the first comment that heads a config file, without the package header."""
    with open(path, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            text = line.strip()
            if text and not text.startswith("#"):
                break
            comment = text.lstrip("# ")
            if comment and not comment.startswith("@"):
                return comment
    return ""

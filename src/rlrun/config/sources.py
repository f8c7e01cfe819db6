"""Config folders as Hydra sees them.

`rlrun/GROUP/NAME`, wherever it is written, means the packaged file: so a user's
`conf/algorithm/sac.yaml` can start from ours with `defaults: [rlrun/algorithm/sac]`. The group
`tuned` shows presets once more, as numbers without the algorithm and environment they were tuned for.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from hydra._internal.config_repository import ConfigRepository
from hydra.core.default_element import ConfigDefault
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlrun.config import renames
from rlrun.config.files import read_yaml
from rlrun.config.places import ConfigFolder
from rlrun.config.reading import admit_resolvers
from rlrun.core.errors import ConfigError

Names: TypeAlias = list[str]

OURS = "rlrun"
TUNED = "tuned"
PRESETS = "preset"
_CHOSEN = ("algorithm", "env")  # what a tuned preset was found by, and therefore does not choose
_HEADER = re.compile(r"#\s*@package\s+(\S+)\s*$")


class FolderSource(ConfigSource):  # type: ignore[misc]
    """A folder of config files; only in the packaged one `rlrun/` leads to its files."""

    def __init__(self, place: ConfigFolder) -> None:
        super().__init__(provider=OURS if place.packaged else "project", path=f"{self.scheme()}://{place.path}")
        self.place = place

    @staticmethod
    def scheme() -> str:
        return "file"

    def available(self) -> bool:
        return self.place.path.is_dir()

    def named(self, config_path: str) -> str:
        """Return a config path as this folder has it."""
        return _inside(config_path)[0] if self.place.packaged else config_path

    def _path(self, config_path: str, suffix: str = "") -> Path:
        """Return the path of a file or group; presets are those of the group `tuned`, too."""
        return self.place.inside(re.sub(rf"^{TUNED}(?=/|$)", PRESETS, self.named(config_path)) + suffix)

    def file(self, config_path: str) -> Path:
        """Return the file behind a config path."""
        return self._path(config_path.removesuffix(".yaml"), ".yaml")

    def label(self, config_path: str) -> str:
        """Return the name under which messages and provenance show a file."""
        path: Any = self.file(config_path)
        label = f"{OURS}/{path.relative_to(self.place.path)}" if self.place.packaged else path
        return f"{label}{' (found by algorithm and env)' if self.named(config_path).startswith(f'{TUNED}/') else ''}"

    def is_group(self, config_path: str) -> bool:
        return os.path.isdir(self._path(config_path))

    def is_config(self, config_path: str) -> bool:
        return os.path.isfile(self.file(config_path))

    def list(self, config_path: str, results_filter: ObjectType | None = None) -> Names:
        entries = sorted(self._path(config_path).iterdir())
        groups = [entry.name for entry in entries if entry.is_dir()]
        configs = [entry.stem for entry in entries if entry.suffix == ".yaml"]
        if results_filter is None:
            return groups + configs
        return groups if results_filter == ObjectType.GROUP else configs

    def load_config(self, config_path: str) -> ConfigResult:
        place, (inside, reached) = self.label(config_path), _inside(config_path)
        try:
            content = read_yaml(self.file(config_path), place)
            if not self.place.packaged and isinstance(content.get("defaults"), list):
                content["defaults"] = renames.defaults(content["defaults"], self.is_config, place)
            if inside.startswith(f"{TUNED}/"):
                content["defaults"] = [item for item in content.get("defaults", ()) if not _chooses(item, _CHOSEN)]
            config = OmegaConf.create(content)
        except OmegaConfBaseException as error:
            raise ConfigError(f"{place}: {one_line(error)}") from error
        package = package_header(self.file(config_path))
        if package is None and reached and self.place.packaged:
            # A packaged file keeps its own package, whichever file includes it.
            package = inside.rpartition("/")[0].replace("/", ".") or "_global_"
        return ConfigResult(provider=self.provider, path=place, config=config, header={"package": package})


class Repository(ConfigRepository):  # type: ignore[misc]
    """All folders of the search path; each file is read once."""

    def __init__(self, places: Sequence[ConfigFolder]) -> None:
        self.places = places
        self.sources = [FolderSource(place) for place in places]
        self.cache: dict[str, ConfigResult | None] = {}

    def load_config(self, config_path: str) -> ConfigResult | None:
        if config_path not in self.cache:
            self.cache[config_path] = self._load(config_path)
        return self.cache[config_path]

    def is_ours(self, config_path: str) -> bool:
        """Return True if a config path leads to the packaged folder."""
        source: Any = self._find_object_source(config_path, ObjectType.CONFIG)
        return source is not None and bool(source.place.packaged)

    def _load(self, config_path: str) -> ConfigResult | None:
        try:
            result = super().load_config(config_path)
        except ValueError as error:  # a defaults list that is none
            raise ConfigError(one_line(error)) from error
        if result is not None:
            for item in result.defaults_list or ():
                admit_resolvers(f"{item}", result.path)  # Hydra evaluates them
                own = (config_path.rpartition("/")[2], f"/{config_path}")
                if isinstance(item, ConfigDefault) and item.path in own:
                    hint = f": to start from the packaged file, write '{OURS}/{config_path}'"
                    raise ConfigError(f"{result.path}: its defaults name the file itself{hint}")
                _place(item, config_path)
        return result


def _place(item: Any, config_path: str) -> None:
    """Make a line of a defaults list mean the same in every file, with and without `@package`."""
    if isinstance(item, ConfigDefault):
        if _inside(str(item.path))[1] and item.package in ("", "_global_"):
            item.package = None  # the packaged file knows its own place
        return
    if config_path.startswith(f"{OURS}/") and config_path.count("/") == 1:
        item.group = "/" + str(item.group).removeprefix("/")  # groups of rlrun/train are the top-level ones
    if item.override and item.package is None and str(item.group).startswith("/"):
        item.package = "_global_" + str(item.group).replace("/", ".")


def package_header(path: Path) -> str | None:
    """Return what `# @package` says among the comments that head a file."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.strip() and not line.lstrip().startswith("#"):
                break
            if match := _HEADER.match(line.strip()):
                return match[1]
    return None


def one_line(error: BaseException | str) -> str:
    """Return an error's message without its line breaks and Hydra's appendices."""
    text = str(error).split("\nSee http")[0].split("Config search path:")[0].split("\n    full_key:")[0]
    return " ".join(text.split())


def _inside(config_path: str) -> tuple[str, bool]:
    """Cut everything up to a segment `rlrun`; say whether there was one."""
    parts = config_path.split("/")
    if OURS in parts[:-1]:
        return "/".join(parts[len(parts) - parts[::-1].index(OURS) :]), True
    return config_path, False


def _chooses(item: Any, groups: tuple[str, ...]) -> bool:
    """Return True if a line of a defaults list is `override /GROUP: …` for one of the groups."""
    if isinstance(item, str):
        return False
    overrides = str(next(iter(item))).split()
    return "override" in overrides and overrides[-1].lstrip("/").split("@")[0] in groups

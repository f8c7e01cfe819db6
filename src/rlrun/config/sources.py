"""Config folders as sources for Hydra, with rlrun's YAML, and packaged files also as `/rlrun/GROUP/NAME`."""

import functools
import pickle
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from hydra.core.config_store import ConfigStore
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlrun.config import places
from rlrun.config.build import register_resolvers
from rlrun.config.files import one_line, read_yaml
from rlrun.config.places import ConfigFolder
from rlrun.core.errors import ConfigError, shown

OURS = "rlrun"  # prefix of config paths that always lead to packaged files
HEADED = ("algorithm", "preset", "with")  # groups whose files set keys of the whole config
_PACKAGE = re.compile(r"\s*#\s*@\s*package\s+(\S+)\s*$")


class FolderSource(ConfigSource):  # type: ignore[misc]
    """A folder of config files; in the packaged one, `rlrun/GROUP/NAME` also names the file `GROUP/NAME`."""

    def __init__(self, provider: str, path: str) -> None:
        super().__init__(provider, path)
        folder = Path(unquote(self.path))
        self.place = ConfigFolder(folder, packaged=folder == places.packaged_dir().resolve())

    @classmethod
    def of(cls, place: ConfigFolder) -> "FolderSource":
        """Return the source of a folder of the search path."""
        return cls(OURS, f"{cls.scheme()}://{quote(str(place.path))}")

    @staticmethod
    def scheme() -> str:
        return OURS

    def available(self) -> bool:
        return self.place.path.is_dir()

    def file(self, config_path: str) -> Path:
        """Return the file of a config path."""
        return self._path(f"{config_path.removesuffix('.yaml')}.yaml")

    def _path(self, config_path: str) -> Path:
        return self.place.path / (config_path.removeprefix(f"{OURS}/") if self.place.packaged else config_path)

    def label(self, config_path: str) -> str:
        """Return the name of a file in messages and provenance."""
        path: Any = self.file(config_path)
        return f"{OURS}/{path.relative_to(self.place.path)}" if self.place.packaged else str(path)

    def is_group(self, config_path: str) -> bool:
        return self._path(config_path).is_dir()

    def is_config(self, config_path: str) -> bool:
        return self.file(config_path).is_file()

    def list(self, config_path: str, results_filter: ObjectType | None = None) -> list[str]:
        entries = sorted(self._path(config_path).iterdir())
        groups = [entry.name for entry in entries if entry.is_dir() and entry.name[0] not in "._"]
        configs = [entry.stem for entry in entries if entry.suffix == ".yaml"]
        if results_filter is None:
            return groups + configs
        return groups if results_filter == ObjectType.GROUP else configs

    def content(self, config_path: str) -> Any:
        """Return the content of a file; packaged files are read only once."""
        path, label = self.file(config_path), self.label(config_path)
        return _packaged(path, label)[0] if self.place.packaged else read_yaml(path, label)

    def load_config(self, config_path: str) -> ConfigResult:
        path, label = self.file(config_path), self.label(config_path)
        package = _header(path)
        if self.place.packaged:
            config = pickle.loads(_packaged(path, label)[1])
            if package is None and config_path.startswith(f"{OURS}/"):
                # A packaged file keeps its own package, whichever file includes it.
                package = ".".join(["_global_", *config_path.split("/")[1:-1]])
        else:
            config = _own(path, config_path)
            _require_header(path, config_path, package, config)
        return ConfigResult(provider=self.provider, path=label, config=config, header={"package": package})


@functools.cache
def _packaged(path: Path, label: str) -> tuple[Any, bytes]:
    """Return the content of a packaged file, and its pickled config: unpickling is faster than creating it again."""
    content = read_yaml(path, label)
    return content, pickle.dumps(OmegaConf.create(content))


def _own(path: Path, config_path: str) -> Any:
    """Return the config of a user's file, and register its resolvers.

    Raises:
        ConfigError: naming the file.
    """
    content = read_yaml(path, str(path))
    for key, kind, wanted in (("defaults", list, "a list"), ("hydra", dict, "keys"), ("sweep", dict, "keys")):
        if content.get(key) is not None and not isinstance(content[key], kind):
            raise ConfigError(f"{path}: {key}: wanted {wanted}, got {shown(content[key])}")
    register_resolvers(content)
    for item in content.get("defaults") or () if isinstance(content.get("defaults"), list) else ():
        if item in (config_path.rpartition("/")[2], f"/{config_path}"):
            hint = f": to start from the packaged file, write '/{OURS}/{config_path}'"
            raise ConfigError(f"{path}: its defaults name the file itself{hint}")
    try:
        return OmegaConf.create(content)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{path}: {one_line(error)}") from error


@functools.lru_cache(1024)
def _head(path: Path, changed: int) -> tuple[str, ...]:
    """Return the comments at the top of a file."""
    lines = []
    with path.open(encoding="utf-8", errors="replace") as text:
        for line in text:
            if line.strip() and not line.lstrip("\ufeff").lstrip().startswith("#"):
                break
            lines.append(line.rstrip("\n"))
    return tuple(lines)


def _header(path: Path) -> str | None:
    """Return the package that the first line of a file names, as Hydra reads it."""
    head = _head(path, path.stat().st_mtime_ns)
    match = _PACKAGE.match(head[0]) if head else None
    return match[1] if match else None


def _require_header(path: Path, config_path: str, package: str | None, content: Any) -> None:
    """Refuse a user's file whose `# @package` Hydra would not see, or that lacks a needed one.

    A file that only lists other files needs none.

    Raises:
        ConfigError: naming the file.
    """
    head = _head(path, path.stat().st_mtime_ns)
    misplaced = [line for line in head[1:] if _PACKAGE.match(line)]
    if head and head[0].startswith("\ufeff") and _PACKAGE.match(head[0].lstrip("\ufeff")):
        raise ConfigError(f"{path}: it begins with a byte order mark (BOM), which hides `# @package`; save it without")
    if package is None and misplaced:
        raise ConfigError(f"{path}: `{misplaced[0].strip()}` has to be its first line, as Hydra reads it only there")
    group = config_path.rpartition("/")[0]
    sets = not content or {*content} - {"defaults"} or "override " in str(content.get("defaults"))
    if package is None and group.split("/")[0] in HEADED and sets:
        raise ConfigError(
            f"{path}: its first line has to be `# @package _global_`; without it, its keys would land below "
            f"`{group.replace('/', '.')}.`"
        )


def stored(config_path: str) -> Any:
    """Return the entry of the user's ConfigStore at a config path as a plain tree, or None."""
    store, name = ConfigStore.instance(), f"{config_path}.yaml"
    if store.get_type(name) != ObjectType.CONFIG:
        return None
    return OmegaConf.to_container(OmegaConf.structured(store.load(name).node), resolve=False)


class SearchPath:
    """The folders that are searched for config files; the first match wins."""

    def __init__(self, folders: Sequence[ConfigFolder]) -> None:
        Plugins.instance().register(FolderSource)
        self.sources = [FolderSource.of(place) for place in folders]

    @property
    def override(self) -> str:
        """The override that makes Hydra search these folders."""
        return f"hydra.searchpath=[{','.join(repr(source.full_path()) for source in self.sources)}]"

    def source_of(self, config_path: str) -> FolderSource | None:
        """Return the first source that has the file of a config path, or None."""
        return next((source for source in self.sources if source.is_config(config_path)), None)

    def is_group(self, name: str) -> bool:
        """Return True if a group of this name exists, in a folder or in the ConfigStore."""
        stored = ConfigStore.instance().get_type(name) == ObjectType.GROUP
        return stored or any(source.is_group(name) for source in self.sources)

    def has(self, config_path: str) -> bool:
        """Return True if a config of this name exists, in a folder or in the ConfigStore."""
        return self.source_of(config_path) is not None or stored(config_path) is not None

    def has_yml(self, config_path: str) -> bool:
        """Return True if there is a file of this name with the unsupported ending .yml."""
        return any(source.file(config_path).with_suffix(".yml").is_file() for source in self.sources)

    def options(self, group: str) -> list[str]:
        """Return the options of a group, including those of the ConfigStore."""
        store = ConfigStore.instance()
        stored = store.list(group) if store.get_type(group) == ObjectType.GROUP else ()
        options = {name.removesuffix(".yaml") for name in stored if name.endswith(".yaml")}
        return sorted(options.union(*self._listed(group, ObjectType.CONFIG)))

    def groups(self) -> list[str]:
        """Return the groups of all folders, and the groups inside them."""
        groups = sorted({*chain(*self._listed("", ObjectType.GROUP))})
        return groups + [
            f"{group}/{name}" for group in groups for name in chain(*self._listed(group, ObjectType.GROUP))
        ]

    def _listed(self, group: str, kind: ObjectType) -> Iterator[list[str]]:
        return (source.list(group, kind) for source in self.sources if source.is_group(group))

    def is_packaged(self, config_path: str) -> bool:
        """Return True if a config path leads to a packaged file."""
        source = self.source_of(config_path)
        return source is not None and source.place.packaged

    def label(self, config_path: str) -> str:
        """Return the name of a file in messages."""
        source = self.source_of(config_path)
        return config_path if source is None else source.label(config_path)

    def __str__(self) -> str:
        return ", ".join(str(source.place.path) for source in self.sources)

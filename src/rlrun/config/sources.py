"""Config folders as Hydra sees them, and the ordered list of files that overrides choose from them.

`rlrun/GROUP/NAME`, wherever it is written, means the packaged file: so a user's
`conf/algorithm/sac.yaml` can start from ours with `defaults: [rlrun/algorithm/sac]`. The group
`tuned` shows presets once more, as numbers without the algorithm and environment they were tuned for.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from hydra import version
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.defaults_list import create_defaults_list
from hydra.core.default_element import ConfigDefault, GroupDefault
from hydra.core.object_type import ObjectType
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlrun.config.files import one_line, read_yaml
from rlrun.config.overrides import Override, hydra_overrides
from rlrun.config.peers import GYM_ID, override_of
from rlrun.config.places import ConfigFolder
from rlrun.config.reading import admit_resolvers
from rlrun.core.errors import ConfigError, did_you_mean, nearest

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
        self.envs: dict[str, str] = {}  # config path of an algorithm -> the environment that its defaults choose

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
            self._take_env(result, config_path)
        return result

    def _take_env(self, result: ConfigResult, config_path: str) -> None:
        """Take `override /env: NAME` out of an algorithm's defaults: Hydra would refuse it, as env is chosen later."""
        kept = []
        for item in result.defaults_list or ():
            chooses = isinstance(item, GroupDefault) and item.override and item.group == "/env"
            if chooses and "algorithm" in config_path.split("/")[:-1]:
                self.envs[config_path] = str(item.get_name())
            else:
                kept.append(item)
        result.defaults_list = kept


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


class Files(NamedTuple):
    """The files in the order of merging, and what was chosen from each group."""

    defaults: list[Any]  # Hydra's ResultDefault
    choices: dict[str, Any]  # group -> option, list of options, or None


@contextmanager
def hydra_as_of_now() -> Iterator[None]:
    """Set Hydra's behavior to version 1.3, and restore its global version afterwards.

    Nothing else of Hydra's global state is touched, so a user's own Hydra application may be active.
    """
    if not hasattr(version, "base_at_least"):  # 1.4 has one behavior only
        yield
        return
    base = version.VersionBase.instance()
    previous = base.version_base
    base.setbase(version._get_version("1.3"))
    try:
        yield
    finally:
        base.version_base = previous


def listed_groups(repository: Repository, config_path: str) -> dict[str, Any]:
    """Return the groups in a file's defaults list, and in those of files it starts from, with their options."""
    result = repository.load_config(config_path)
    if result is None:
        raise ConfigError(f"no '{config_path}.yaml' on the search path: {places(repository)}")
    groups: dict[str, Any] = {}
    for item in result.defaults_list or ():
        if isinstance(item, GroupDefault) and not item.override:
            groups[str(item.group).removeprefix("/")] = item.value
        elif isinstance(item, ConfigDefault) and not item.is_self():
            inner = str(item.path).removeprefix("/")
            groups |= listed_groups(repository, inner) if repository.config_exists(inner) else {}
    return groups


def places(repository: Repository) -> str:
    """Return the search path as text."""
    return ", ".join(str(place.path) for place in repository.places)


def settle(repository: Repository, override: Override, listed: dict[str, Any]) -> list[Override]:
    """Return an override that chooses from a group as Hydra wants it; nothing if there is nothing to take out.

    Whether `+` is needed follows from the defaults list, so both `with=rnd` and `+with=rnd` work;
    `group=null` takes the group out.

    Raises: ConfigError if an option does not exist.
    """
    if override.sign == "~" or override.value is None:
        if override.sign == "~" and override.key not in listed:
            raise ConfigError(f"~{override.key}: nothing was chosen for it")
        return [override._replace(sign="~")] if override.key in listed else []
    if not isinstance(override.value, str | list):  # a name that reads as a number, nan say
        override = override._replace(value=override.text.partition("=")[2])
    for option in override.value if isinstance(override.value, list) else [override.value]:
        known = isinstance(option, str) and "${" not in option
        if not known or not repository.config_exists(f"{override.group}/{option}"):
            raise ConfigError(f"{override.key}: {unknown_option(repository, override.group, str(option))}")
    return [override._replace(sign="" if override.key in listed else "+")]


def unknown_option(repository: Repository, group: str, option: str) -> str:
    """Say that an option does not exist, with the nearest one or all."""
    options = repository.get_group_options(group)
    meant = override_of(option, "") if group == "with" else None  # a name of another library, such as per
    near = f" (did you mean '{meant}'?)" if meant else did_you_mean(option, options)
    if group == "env" and GYM_ID.fullmatch(option):
        near += f"; an id of Gymnasium is given by env.id={option}"
    return f"there is no '{option}'" + (near or f"; there are {', '.join(options) or 'none'}")


def list_files(repository: Repository, overrides: Sequence[Override], *, primary: str) -> Files:
    """Return the files that the settled overrides ask for.

    Raises: ConfigError for whatever Hydra refuses.
    """
    try:
        defaults_list = create_defaults_list(
            repo=repository,
            config_name=primary,
            overrides_list=hydra_overrides(overrides),
            prepend_hydra=False,
            skip_missing=False,
        )
    except RecursionError as error:
        raise ConfigError(f"the defaults lists of {places(repository)} include each other in a circle") from error
    except (HydraException, OmegaConfBaseException, ValueError, AssertionError) as error:
        raise ConfigError(_rewritten(repository, error)) from error
    chosen = {override.key: override.value for override in overrides if isinstance(override.value, list)}
    return Files(defaults_list.defaults, {**defaults_list.overrides.known_choices, **chosen})


def _rewritten(repository: Repository, error: BaseException) -> str:
    text = str(error)
    if match := re.search(r"You must specify '([^']+)'", text):
        group = match[1].split("@")[0]
        options = repository.get_group_options(group)
        return f"{group}: nothing is chosen: {group}=NAME with one of {', '.join(options) or 'none'}"
    if match := re.search(r"In '([^']+)': Could not (?:find|load) '([^']+)'", text):
        parent, choice = match.groups()
        group, _, option = choice.rpartition("/")
        near = unknown_option(repository, group, option) if group else "no such file"
        return f"{_label(repository, parent)}: its defaults name '{choice}': {near}"
    if match := re.search(r"In '([^']+)': Could not override '([^']+)'", text):
        place, group = _label(repository, match[1]), match[2].split("@")[0]
        if not repository.group_exists(group):
            groups = [f"/{name}" for name in repository.get_group_options("", ObjectType.GROUP)]
            near = did_you_mean(f"/{group.rpartition('/')[2]}", groups)
            return f"{place}: its defaults override '{group}', which is not a group{near}"
        return (
            f"{place}: 'override /{group}' comes too early, {group} is chosen after this file; "
            f"leave the line out and give {group}=NAME, or choose both in a file of {PRESETS}/"
        )
    if match := re.search(r"In '([^']+)': (.*)", text, re.S):
        return f"{_label(repository, match[1])}: {one_line(match[2])}"
    return one_line(text)


def _label(repository: Repository, config_path: str) -> str:
    result = repository.load_config(config_path)
    return result.path if result else config_path


def mistyped_group(overrides: Sequence[Override], listed: dict[str, Any]) -> str | None:
    """Return a message if an override looks like a choice from a group whose name is misspelt."""
    for override in overrides:
        near = nearest(override.key, listed)
        if "." not in override.key and near is not None and near != override.key:
            return f"{override.key}: no such key or group (did you mean '{near}'?)"
    return None


def describe_presets(presets: Iterable[str | None]) -> str:
    """Return one line that names the presets that apply, and the way to do without; nothing where none does."""
    applied = ", ".join(dict.fromkeys(preset for preset in presets if preset is not None))
    return f"preset: {applied} (tuned for this algorithm and environment; preset=null for none)" if applied else ""


def tuned_preset(repository: Repository, overrides: Sequence[Override], choices: dict[str, Any]) -> str | None:
    """Return the name of the preset for the chosen algorithm and environment, if it may apply.

    None may if a preset is named, or none (`preset=null`). A packaged one may not if either file is the user's own.
    """
    algorithm, env = choices.get("algorithm"), choices.get("env")
    named = choices.get(PRESETS) is not None or any(override.key in (PRESETS, TUNED) for override in overrides)
    if named or not isinstance(algorithm, str) or not isinstance(env, str):
        return None
    name = f"{algorithm}_{env}"
    files = (f"{TUNED}/{name}", f"algorithm/{algorithm}", f"env/{env}")
    of_packaged = [repository.is_ours(file) for file in files]
    return name if repository.config_exists(files[0]) and (all(of_packaged) or not of_packaged[0]) else None

"""Compose a run's config: overrides, the user's files and the packaged ones."""

import pickle
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from hydra.core.object_type import ObjectType
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlrun.config import places, reading, schema
from rlrun.config.files import one_line
from rlrun.config.interpolation import LinkError, dotted, leaves, plain, split
from rlrun.config.interpolation import Path as Keys
from rlrun.config.merging import OVERRIDE, Layer, apply, check_likeness, merge, origins
from rlrun.config.overrides import ADDITIONS, Override, parse
from rlrun.config.peers import hint
from rlrun.config.places import ConfigFolder, readable_places
from rlrun.config.sources import (
    TUNED,
    Files,
    Repository,
    hydra_as_of_now,
    list_files,
    listed_groups,
    mistyped_group,
    settle,
    tuned_preset,
)
from rlrun.core.errors import ConfigError, did_you_mean

PRIMARY = "train"
NAMES_OF_ENV = ("env.id", "env.target")
OF_SWEEPS = ("launcher", "sweep")  # what a sweep is made with; no run has them


@dataclass(frozen=True)
class Composed:
    """A composed config and how it came about."""

    config: DictConfig  # unresolved; its keys are closed
    overrides: list[str]  # of the command line, each key once
    choices: dict[str, Any]  # group -> option, list of options, or None
    layers: list[Layer]  # what each file and the overrides put in, in order
    project: Path  # the user's folder, on sys.path

    @property
    def preset(self) -> str | None:
        """The tuned preset that was applied."""
        preset: str | None = self.choices.get(TUNED)
        return preset


def compose(
    overrides: Sequence[str] = (),
    config_dir: str | Path | None = None,
    *,
    roots: Sequence[str] = reading.ROOTS,
    check: bool = True,
    primary: str = PRIMARY,
) -> Composed:
    """Compose `train.yaml` with the overrides of a command line, and check the result.

    Precedence: packaged files < the tuned preset < the user's files < overrides. Nothing is built and no
    class imported. `roots` are the keys that are read whatever is built; `primary` names another file than
    `train.yaml`.

    Raises: ConfigError, in one line, for whatever is wrong.
    """
    return Composer(config_dir, primary=primary).compose(overrides, roots=roots, check=check)


class Composer:
    """Compose any number of command lines from one search path; each file is read once."""

    def __init__(self, config_dir: str | Path | None = None, *, primary: str = PRIMARY) -> None:
        folder = Path(config_dir) if config_dir is not None else None
        self._library = library(readable_places(folder), primary)
        self._project = places.project_dir(folder)
        self._primary = primary
        places.add_to_path(self._project)

    def compose(
        self, overrides: Sequence[str] = (), *, roots: Sequence[str] = reading.ROOTS, check: bool = True
    ) -> Composed:
        """Return what `compose` returns.

        Raises: ConfigError, in one line, for whatever is wrong.
        """
        with hydra_as_of_now():
            composed = self._compose(parse(overrides))
        if check:
            validate(composed, roots)
        return composed

    def _compose(self, overrides: list[Override]) -> Composed:
        for override in overrides if self._primary == PRIMARY else ():
            if override.key.split(".")[0] in OF_SWEEPS:
                raise ConfigError(f"{override.text}: this is for a sweep: rlrun train -m …")
        repository, listed = self._library.repository, self._library.listed
        is_group = {override.key: _is_group(repository, override) for override in overrides}
        settings = [override for override in overrides if not is_group[override.key]]
        chosen = self._settled([override for override in overrides if is_group[override.key]])
        try:
            files = self._library.files(chosen)
            if not any(override.key.split(".")[0] == "env" for override in overrides):
                chosen = [*chosen, *self._library.own_env(files)]
            choices = self._library.files(chosen).choices
        except ConfigError as error:
            raise ConfigError(mistyped_group(settings, listed) or str(error)) from error
        preset = tuned_preset(repository, overrides, choices)
        # Others may set keys of the preset.
        naming = [override for override in settings if override.key in ("env", *NAMES_OF_ENV)]
        if preset is not None and not _env_changed(*self._assemble(chosen, naming)):
            chosen = [*chosen, Override(f"{TUNED}={preset}", "" if TUNED in listed else "+", TUNED, preset)]
            choices = self._library.files(chosen).choices
        config, layers = self._assemble(chosen, settings)
        return Composed(config, [override.text for override in overrides], choices, layers, self._project)

    def _settled(self, overrides: list[Override]) -> list[Override]:
        """Return overrides that choose from groups as Hydra wants them; what they choose may list further groups."""
        repository, listed = self._library.repository, dict(self._library.listed)
        settled = {
            override.key: settle(repository, override, listed) for override in overrides if override.key in listed
        }
        waiting = [override for override in overrides if override.key not in listed]
        # What adds may list groups, too.
        waiting.sort(key=lambda override: (override.key != ADDITIONS, override.sign != "+"))
        while waiting:
            with suppress(ConfigError):  # the error is raised when all overrides are there
                listed |= self._library.files([*chain.from_iterable(settled.values())]).choices
            override = next((override for override in waiting if override.key in listed), waiting[0])
            waiting.remove(override)
            settled[override.key] = settle(repository, override, listed)
        return [*chain.from_iterable(settled[override.key] for override in overrides)]

    def _assemble(self, chosen: Sequence[Override], settings: Sequence[Override]) -> tuple[DictConfig, list[Layer]]:
        config, layers = self._library.merged(chosen)
        content: dict[str, Any] = {}
        for override in settings:
            if override.sign != "~":
                content |= {override.key: override.value}
            apply(config, override, self._library.groups)
        spread = OmegaConf.create()
        for name, value in content.items():
            OmegaConf.update(spread, name, value, force_add=True)
        return config, [*layers, Layer(OVERRIDE, "", False, plain(spread))]


class Library:
    """What the files of a search path come to, by the overrides that choose from groups."""

    def __init__(self, places: Sequence[ConfigFolder], primary: str) -> None:
        self.repository = Repository(places)
        self._primary = primary
        self._files: dict[tuple[str, ...], Files] = {}
        self._merged: dict[tuple[str, ...], bytes] = {}  # pickled: a copy is made in a fifth
        with hydra_as_of_now():
            self.listed = listed_groups(self.repository, primary)
        self.groups = self.repository.get_group_options("", ObjectType.GROUP)

    def files(self, chosen: Sequence[Override]) -> Files:
        """Return the files that settled overrides ask for.

        Raises: ConfigError for whatever Hydra refuses.
        """
        key = _names(chosen)
        if key not in self._files:
            self._files[key] = list_files(self.repository, chosen, primary=self._primary)
        files = self._files[key]
        return files._replace(choices=dict(files.choices))

    def own_env(self, files: Files) -> list[Override]:
        """Return the choice that an algorithm's defaults list makes of the environment, unless another file does."""
        if files.choices.get("env") != self.listed.get("env"):
            return []
        paths = [result.config_path for result in files.defaults]
        names = [self.repository.envs[path] for path in paths if path in self.repository.envs]
        return [Override(f"env={name}", "", "env", name) for name in names[-1:]]

    def merged(self, chosen: Sequence[Override]) -> tuple[DictConfig, list[Layer]]:
        """Return the files merged, and what each of them put in: as copies.

        Raises: ConfigError for whatever Hydra refuses, and if a file does not fit what came before it.
        """
        key = _names(chosen)
        if key not in self._merged:
            self._merged[key] = pickle.dumps(merge(self.repository, self.files(chosen).defaults))
        config, layers = pickle.loads(self._merged[key])
        return config, layers


def library(places: Sequence[ConfigFolder], primary: str) -> Library:
    """Return the library of a search path.

    What comes with rlrun alone is shared by all who compose in this process; so is the work of a process with those
    that are forked from it.
    """
    packaged = [place.packaged for place in places] == [True]
    return _shared(places[0], primary) if packaged else Library(places, primary)


@lru_cache(maxsize=4)
def _shared(place: ConfigFolder, primary: str) -> Library:
    return Library([place], primary)


def _names(chosen: Sequence[Override]) -> tuple[str, ...]:
    return tuple(f"{override.sign}{override.key}={override.value}" for override in chosen)


def _is_group(repository: Repository, override: Override) -> bool:
    return (
        not isinstance(override.value, dict) and "." not in override.group and repository.group_exists(override.group)
    )


def _env_changed(config: DictConfig, layers: list[Layer]) -> bool:
    """Return True if the environment is not the one that the env file names."""
    setters = origins(config, layers)
    named_by = [setters[split(key)] for key in NAMES_OF_ENV if split(key) in setters]
    return not all(layer.config_path.startswith("env/") for layer in named_by)


def validate(composed: Composed, roots: Sequence[str] = reading.ROOTS) -> None:
    """Check types, interpolations, missing values and unread keys.

    Raises: ConfigError for the first thing that is wrong.
    """
    config = composed.config
    env = plain(config).get("env")
    if isinstance(env, dict) and "_target_" not in env:
        file = f"env/{composed.choices.get('env')}.yaml"
        raise ConfigError(f"env: {file} has no `_target_`; let it begin with `defaults: [gym, _self_]`")
    if isinstance(env, dict) and "id" in env and "target" in env and env["id"] is None and env["target"] is None:
        raise ConfigError("env: no environment is named: env=NAME (rlrun list envs), env.id=ID or env.target=CLASS")
    _check_completed(composed)
    try:
        schema.require_memory(config)
        for key, value in {**schema.check_kinds(config), **check_likeness(config, composed.layers)}.items():
            OmegaConf.update(config, key, value, merge=False)
        read = reading.reached(config, roots)
        for key in reading.missing(read):
            part = key.removeprefix("init.from.")  # its name has dots of its own
            raise ConfigError(f"{key}: a value is needed: {f'{key}=…' if part == key else f'init.from={{{part}: …}}'}")
        reading.resolve_texts(config, read)
    except LinkError as error:
        if "'${agent}' leads" in str(error) and plain(config).get("env"):
            name = composed.choices.get("algorithm")
            raise ConfigError(f"algorithm={name} learns from data alone; leave env= out") from error
        needing = _needing(composed, origins(config, composed.layers).get(error.place))
        if not needing:
            raise
        raise ConfigError(f"{error}; {needing}") from error
    except OmegaConfBaseException as error:
        raise ConfigError(one_line(error)) from error
    _check_unread(composed, read)


def _check_completed(composed: Composed) -> None:
    """Refuse an addition to a callback or an adaptor that the algorithm lacks."""
    setters = origins(composed.config, composed.layers)
    for path, layer in setters.items():
        depth = 2 if path[0] == "callbacks" else 3 if path[:2] == ("memory", "adaptors") else len(path)
        lacking = len(path) > depth and (*path[:depth], "_target_") not in setters
        if lacking and (needing := _needing(composed, layer)):
            raise ConfigError(f"{dotted(path[:depth])}: {needing}")


def _needing(composed: Composed, layer: Layer | None) -> str:
    """Return that an addition of ours needs what the algorithm lacks, and what it is for; nothing of other layers."""
    if layer is None or not layer.packaged or not layer.config_path.startswith("with/"):
        return ""
    name = layer.config_path.removeprefix("with/")
    purpose = places.first_comment(places.packaged_dir() / f"{layer.config_path}.yaml")
    return f"+with={name} needs it, and algorithm={composed.choices.get('algorithm')} lacks it; {name}: {purpose}"


def _check_unread(composed: Composed, read: Mapping[Keys, Any]) -> None:
    """Refuse an unread key that an override or a user's file set, and an addition of ours of which no key is read.

    Another packaged file may hold a number that stays unread once `~callbacks.x` took its reader out.
    """
    tree, setters = plain(composed.config), origins(composed.config, composed.layers)
    keys = [dotted(path) for path, _ in leaves(tree)]
    for layer in composed.layers:
        own = [path for path, setter in setters.items() if setter is layer]
        if own and not any(path in read for path in own) and (needing := _needing(composed, layer)):
            place = next((path for path in own if f"with/{path[0]}" != layer.config_path), own[0])
            raise ConfigError(f"{dotted(place[:2])}: no part reads this key; {needing}")
    for key in reading.unread(tree, read):
        inside = [path for path in setters if path[: len(split(key))] == split(key)]
        if not inside or not all(setters[path].packaged for path in inside):
            near = did_you_mean(key, [candidate for candidate in keys if not candidate.startswith(key)])
            raise ConfigError(f"{key}: no part reads this key{hint(split(key), tree, near)}")
    in_files = {path for layer in composed.layers if layer.label != OVERRIDE for path, _ in leaves(layer.content)}
    for path, layer in setters.items():
        block = path[0]
        if layer.label == OVERRIDE and block in schema.SETTINGS and path not in in_files:
            names = schema.known(block)
            if dotted(path[1:]) not in names:
                near = did_you_mean(dotted(path[1:]), names, f"{block}.")
                raise ConfigError(f"{dotted(path)}: no part reads this key{near}")

"""Compose a run's config: words, the user's files and the packaged ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlrun.config import places, reading, schema
from rlrun.config.layering import hydra_as_of_now, mistyped_group, settle, tuned_preset
from rlrun.config.library import library
from rlrun.config.likeness import check_likeness
from rlrun.config.merging import apply
from rlrun.config.origins import WORD, Layer, origins
from rlrun.config.peers import hint
from rlrun.config.plugged import readable_places
from rlrun.config.sources import TUNED, Repository, one_line
from rlrun.config.tree import Path as Keys
from rlrun.config.tree import dotted, leaves, plain, split
from rlrun.config.words import ADDITIONS, Word, parse
from rlrun.errors import ConfigError, did_you_mean

PRIMARY = "train"
NAMES_OF_ENV = ("env.id", "env.target")
OF_SWEEPS = ("launcher", "sweep")  # what a sweep is made with; no run has them


@dataclass(frozen=True)
class Composed:
    """A composed config and how it came about."""

    config: DictConfig  # unresolved; its keys are closed
    words: list[str]  # of the command line, each key once
    choices: dict[str, Any]  # group -> option, list of options, or None
    layers: list[Layer]  # what each file and the words put in, in order
    project: Path  # the user's folder, on sys.path

    @property
    def preset(self) -> str | None:
        """The tuned preset that was applied."""
        preset: str | None = self.choices.get(TUNED)
        return preset


def compose(
    words: Sequence[str] = (),
    config_dir: str | Path | None = None,
    *,
    packaged: Path | None = None,
    roots: Sequence[str] = reading.ROOTS,
    check: bool = True,
    primary: str = PRIMARY,
) -> Composed:
    """Compose `train.yaml` with the words of a command line, and check the result.

    Precedence: packaged files < the tuned preset < the user's files < words. Nothing is built and no
    class imported. `packaged` stands in for the folder that comes with rlrun; `roots` are the keys
    that are read whatever is built; `primary` names another file than `train.yaml`.

    Raises: ConfigError, in one line, for whatever is wrong.
    """
    return Composer(config_dir, packaged=packaged, primary=primary).compose(words, roots=roots, check=check)


class Composer:
    """Compose any number of command lines from one search path; each file is read once."""

    def __init__(
        self, config_dir: str | Path | None = None, *, packaged: Path | None = None, primary: str = PRIMARY
    ) -> None:
        folder = Path(config_dir) if config_dir is not None else None
        self._library = library(readable_places(folder, packaged=packaged), primary)
        self._project = places.project_dir(folder)
        self._primary = primary
        places.add_to_path(self._project)

    def compose(
        self, words: Sequence[str] = (), *, roots: Sequence[str] = reading.ROOTS, check: bool = True
    ) -> Composed:
        """Return what `compose` returns.

        Raises: ConfigError, in one line, for whatever is wrong.
        """
        with hydra_as_of_now():
            composed = self._compose(parse(words))
        if check:
            validate(composed, roots)
        return composed

    def _compose(self, words: list[Word]) -> Composed:
        if self._primary == PRIMARY:
            _refuse_sweeps(words)
        repository, listed = self._library.repository, self._library.listed
        is_group = {word.key: _is_group(repository, word) for word in words}
        settings = [word for word in words if not is_group[word.key]]
        chosen = self._settled([word for word in words if is_group[word.key]])
        try:
            choices = self._library.files(chosen).choices
        except ConfigError as error:
            raise ConfigError(mistyped_group(settings, listed) or str(error)) from error
        preset = tuned_preset(repository, words, choices)
        naming = [word for word in settings if word.key in ("env", *NAMES_OF_ENV)]  # others may set keys of the preset
        if preset is not None and not _env_changed(*self._assemble(chosen, naming)):
            chosen = [*chosen, Word(f"{TUNED}={preset}", "" if TUNED in listed else "+", TUNED, preset)]
            choices = self._library.files(chosen).choices
        config, layers = self._assemble(chosen, settings)
        return Composed(config, [word.text for word in words], choices, layers, self._project)

    def _settled(self, words: list[Word]) -> list[Word]:
        """Return the words that choose from groups as Hydra wants them; what they choose may list further groups."""
        repository, listed = self._library.repository, dict(self._library.listed)
        settled = {word.key: settle(repository, [word], listed) for word in words if word.key in listed}
        waiting = [word for word in words if word.key not in listed]
        waiting.sort(key=lambda word: (word.key != ADDITIONS, word.sign != "+"))  # what adds may list groups, too
        while waiting:
            with suppress(ConfigError):  # what is wrong is told once all words are there
                listed |= self._library.files([*chain.from_iterable(settled.values())]).choices
            word = next((word for word in waiting if word.key in listed), waiting[0])
            waiting.remove(word)
            settled[word.key] = settle(repository, [word], listed)
        return [*chain.from_iterable(settled[word.key] for word in words)]

    def _assemble(self, chosen: Sequence[Word], settings: Sequence[Word]) -> tuple[DictConfig, list[Layer]]:
        config, layers = self._library.merged(chosen)
        content: dict[str, Any] = {}
        for word in settings:
            if word.sign != "~":
                content |= {word.key: word.value}
            apply(config, word, self._library.groups)
        spread = OmegaConf.create()
        for name, value in content.items():
            OmegaConf.update(spread, name, value, force_add=True)
        return config, [*layers, Layer(WORD, "", False, plain(spread))]


def _refuse_sweeps(words: list[Word]) -> None:
    for word in words:
        if word.key.split(".")[0] in OF_SWEEPS:
            raise ConfigError(f"{word.text}: this is of a sweep: rlrun train -m …")


def _is_group(repository: Repository, word: Word) -> bool:
    return not isinstance(word.value, dict) and "." not in word.group and repository.group_exists(word.group)


def _env_changed(config: DictConfig, layers: list[Layer]) -> bool:
    """Say whether the environment is another one than the env file names."""
    setters = origins(config, layers)
    for key in NAMES_OF_ENV:
        origin = setters.get(split(key))
        if origin is not None and not origin.config_path.startswith("env/"):
            return True
    return False


def validate(composed: Composed, roots: Sequence[str] = reading.ROOTS) -> None:
    """Check types, interpolations, values that are still to be given, and keys that nobody reads.

    Raises: ConfigError for the first thing that is wrong.
    """
    config = composed.config
    _check_env(composed)
    try:
        for key, value in {**schema.check_kinds(config), **check_likeness(config, composed.layers)}.items():
            OmegaConf.update(config, key, value, merge=False)
        read = reading.reached(config, roots)
        for key in reading.missing(read):
            raise ConfigError(f"{key}: a value is needed: {key}=…")
        reading.resolve_texts(config, read)
    except OmegaConfBaseException as error:
        raise ConfigError(one_line(error)) from error
    _check_unread(composed, read)


def _check_env(composed: Composed) -> None:
    env = plain(composed.config).get("env")
    if isinstance(env, dict) and "_target_" not in env:
        file = f"env/{composed.choices.get('env')}.yaml"
        raise ConfigError(f"env: {file} has no `_target_`; let it begin with `defaults: [gym, _self_]`")
    if isinstance(env, dict) and "id" in env and "target" in env and env["id"] is None and env["target"] is None:
        raise ConfigError("env: no environment is named: env=NAME (rlrun list envs), env.id=ID or env.target=CLASS")


def _check_unread(composed: Composed, read: Mapping[Keys, Any]) -> None:
    """Refuse what a word or a user's file set and nobody reads.

    A packaged file may hold a number that stays unread once `~callbacks.x` took its reader out.
    """
    tree, setters = plain(composed.config), origins(composed.config, composed.layers)
    keys = [dotted(path) for path, _ in leaves(tree)]
    for key in reading.unread(tree, read):
        inside = [path for path in setters if path[: len(split(key))] == split(key)]
        if not inside or not all(setters[path].packaged for path in inside):
            near = did_you_mean(key, [candidate for candidate in keys if not candidate.startswith(key)])
            raise ConfigError(f"{key}: no part reads this key{hint(split(key), tree, near)}")
    in_files = {path for layer in composed.layers if layer.label != WORD for path, _ in leaves(layer.content)}
    for path, layer in setters.items():
        block = path[0]
        if layer.label == WORD and block in schema.SETTINGS and path not in in_files:
            names = schema.known(block)
            if dotted(path[1:]) not in names:
                near = did_you_mean(dotted(path[1:]), names, f"{block}.")
                raise ConfigError(f"{dotted(path)}: no part reads this key{near}")

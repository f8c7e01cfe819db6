"""The parent of a new run, the overrides that it inherits, and its `init:` settings."""

import os
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rlrun import config as configuration
from rlrun.config import Composed
from rlrun.config.interpolation import plain
from rlrun.config.layers import OVERRIDE, Layer, origins
from rlrun.config.overrides import listed, parse
from rlrun.config.places import own_dirs
from rlrun.core.errors import ConfigError, RunDirError, did_you_mean
from rlrun.runs.directory import RunDir, is_run
from rlrun.runs.files import open_regular, read_json
from rlrun.security import trust
from rlrun.security.projects import in_a_run

BLOCKS = ("init", "load")  # children do not inherit what their parent was started from
PLAIN = re.compile(r"[A-Za-z0-9_./@+-]+")  # text that Hydra's grammar accepts without quotes
SPECIAL = re.compile(r"([][{}():=,\\ ])")  # letters of a key in braces that Hydra's grammar accepts after a backslash
NAME = re.compile(r"[^:\s]+")
MARK = 8  # bytes before the header of a safetensors file
KINDS = ("weights", "optimizers", "numbers", "memory")
LOAD = "load"  # the other values, skip and reinit, both mean: initialized


@dataclass(frozen=True)
class Parent:
    """The source of a new run."""

    path: Path  # a checkpoint's folder, or a file; for a run its newest good checkpoint is used
    run: RunDir | None = None  # its run; None for a file, or a checkpoint's folder outside a run


def find(text: str) -> Parent:
    """Return the parent that RUN, RUN@STEP, RUN@best, a checkpoint's folder or a .safetensors file names.

    Raises:
        RunDirError: it is none of these; the message lists the run's checkpoints, or names the nearest run.
    """
    path = Path(text).expanduser().absolute()
    folder = path.parent if path.is_file() else path
    is_checkpoint = (folder / "manifest.json").is_file() and (folder / "state.json").is_file()
    if path.is_file():
        _require_safetensors(path)
        if is_checkpoint:
            raise RunDirError(f"{path} is a part of a checkpoint; name its folder, {folder}")
        return Parent(path)
    if not path.exists() and "@" in text:
        base, _, which = text.rpartition("@")
        run = RunDir.open(Path(base).expanduser())
        return Parent(run.checkpoint(which), run)
    if is_checkpoint:
        above = path.parent.parent
        return Parent(path, RunDir(above) if is_run(above) else None)
    run = RunDir.open(path)
    return Parent(run.path, run)


def _require_safetensors(path: Path) -> None:
    with open(open_regular(path, follow=True), "rb") as file:
        start = file.read(MARK + 1)
    if start[MARK:] == b"{":
        return
    if start[:2] in (b"PK", b"\x80\x02", b"\x80\x04") or path.suffix in (".pt", ".pth", ".pkl", ".ckpt", ".bin"):
        raise RunDirError(
            f"{path} is made with pickle, which runs code when it is read; "
            "save its tensors with safetensors.torch.save_file"
        )
    raise RunDirError(f"{path} is no .safetensors file, and no run")


@contextmanager
def started(
    overrides: Iterable[str] | Composed, start: str, config_dir: Path | None = None, packages: Iterable[str] = ()
) -> Iterator[Composed]:
    """Compose the config of a run that starts from another: the parent's overrides first, then these.

    Another person may have made the parent, so the imports of its overrides are limited until the context ends
    (`rlrun.security.trust`); the user's own overrides and files are not limited.

    Args:
        overrides: of the new run; the last of the same key wins.
        start: RUN, RUN@STEP, RUN@best, a checkpoint's folder or a .safetensors file.
        config_dir: the user's own conf folder.
        packages: that the parent's overrides may import in addition to those of any run.

    Raises:
        RunDirError: there is no parent, or the file of its overrides cannot be read.
        ConfigError: the overrides do not compose, alone or after those of the parent.
    """
    packages = trust.require_of_use(packages)
    parent = find(start)
    overrides = overrides.overrides if isinstance(overrides, Composed) else listed(overrides)
    if any(trust.within(override.key, ["init.from"]) for override in parse(overrides)):
        raise ConfigError("--from and init.from both name the parent; give one of them")
    typed = {override.key: override.value for override in parse(overrides) if not _in_blocks(override.key)}
    overrides = [*overrides, f"init.from={_quoted(str(parent.path))}"]
    with _limits(parent, packages, typed):
        inherited = parse([] if parent.run is None else parent.run.read_overrides())
        before = [override.text for override in inherited if not _in_blocks(override.key)]
        try:
            composed = configuration.compose([*before, *overrides], config_dir=config_dir)
        except ConfigError as error:
            if parent.run is None or not before:
                raise
            raise ConfigError(_whose(error, overrides, parent.run)) from error
    folders = own_dirs(config_dir)
    own = [
        {key: value for key, value in layer.content.items() if not _in_blocks(key)}
        for layer in composed.layers
        if _is_own(layer, folders, parent)
    ]
    with _limits(parent, packages, {**typed, "": own}):
        yield composed


def _is_own(layer: Layer, folders: Iterable[Path], parent: Parent) -> bool:
    """Return True if a layer is a user's file: outside of all runs, and not unpacked together with the parent."""
    path, run = Path(os.path.realpath(layer.label)), Path(os.path.realpath(parent.path))
    if layer.packaged or layer.label == OVERRIDE or in_a_run(path.parent):
        return False
    inside = [path.relative_to(folder).parts for folder in folders if path.is_relative_to(folder)]
    brought = [run.relative_to(folder).parts for folder in folders if run.is_relative_to(folder)]
    return bool(inside) and not any(parts[0] == run_parts[0] for parts in inside for run_parts in brought)


def _in_blocks(key: str) -> bool:
    return key.split(".")[0] in BLOCKS


def _limits(parent: Parent, packages: Iterable[str], typed: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Limit the imports of the parent's overrides; the user's overrides and files may name any part, except in `init`.

    The user's overrides replace those of the parent, the user's files do not. So only keys of the overrides are free.
    """
    if parent.run is None:
        return nullcontext()
    about = read_json(parent.run.manifest)
    project = about.get("project") if isinstance(about, dict) else None
    return trust.limited(packages, typed, run=parent.run.path, project=project)


def _whose(error: ConfigError, overrides: list[str], run: RunDir) -> str:
    """Return a message that names the parent, unless the error is about a key of the new overrides."""
    place = f"{(NAME.match(str(error)) or [''])[0]}."  # every such error begins with the key that it is about
    if any(f"{override.key}.".startswith(place) for override in parse(overrides)):
        return str(error)
    way_out = shlex.join(["rlrun", "train", *overrides])
    return f"{error}; the overrides of {run.path} come before these; without them: {way_out}"


def pin(composed: Composed, places: Mapping[str, Path]) -> None:
    """Set `init.from` in a config and its overrides to the exact checkpoints, by the sources as the config has them."""
    source = plain(composed.config)["init"]["from"]
    pinned: Any = str(places[source]) if isinstance(source, str) else {p: str(places[s]) for p, s in source.items()}
    composed.config.init["from"] = pinned
    overrides = [
        override for override in composed.overrides if not trust.within(parse([override])[0].key, ["init.from"])
    ]
    composed.overrides[:] = [*overrides, f"init.from={_quoted(pinned)}"]


def _quoted(text: str | Mapping[str, str]) -> str:
    if isinstance(text, Mapping):
        return "{" + ",".join(SPECIAL.sub(r"\\\1", key) + f":{_quoted(value)}" for key, value in text.items()) + "}"
    if PLAIN.fullmatch(text):
        return text
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


@dataclass(frozen=True)
class Settings:
    """The entries that a new run loads from its parent."""

    sources: Mapping[str, str]  # pattern -> run or file of what matches, as in the config; a single one has `*`
    kinds: Mapping[str, bool]  # kind -> whether it is loaded where no pattern matches
    parts: Mapping[str, bool]  # pattern -> whether it is loaded; the last that matches counts
    rename: Mapping[str, str]  # name (or pattern with one `*`) in the parent -> here; the last that matches counts
    lenient: bool  # parts that do not fit are initialized instead of refused

    def explicit(self, name: str) -> bool | None:
        """Return the flag of the last pattern that matches a name, or None."""
        flags = [loads for pattern, loads in self.parts.items() if matches(pattern, name)]
        return flags[-1] if flags else None

    def loads(self, name: str, kind: str) -> bool:
        """Return True if a name of this kind is loaded."""
        explicit = self.explicit(name)
        return self.kinds[kind] if explicit is None else explicit

    def gives(self, source: str, name: str) -> bool:
        """Return True if a name is loaded from this source."""
        return any(matches(pattern, name) for pattern, text in self.sources.items() if text == source)

    def require_met(self, names: Collection[str], paths: Collection[str]) -> None:
        """Refuse patterns and new names that match nothing, and names that several sources give.

        Raises:
            ConfigError: with the nearest name.
        """
        known = [*paths, *names]
        for name in names:
            patterns = {text: pattern for pattern, text in self.sources.items() if matches(pattern, name)}
            if len(patterns) > 1:
                both = " and ".join(f"'{pattern}' of {text}" for text, pattern in patterns.items())
                raise ConfigError(f"init.from: {both} both give {name}; narrow one of them")
        for old, new in self.rename.items():
            if not any(matches(new, name) for name in known):
                near = did_you_mean(new.removesuffix(".*"), known)
                raise ConfigError(f"init.rename: this run has nothing named '{new}'{near}")
            if not any((old, new) in self.renaming(source) for source in self.sources.values()):
                raise ConfigError(f"init.rename: init.from names no run that gives '{new}'")
        for pattern in self.parts:
            if not any(matches(pattern, name) for name in names):
                place = f"{self.key(pattern)}: '{pattern}'"
                if empty := [path for path in paths if matches(pattern, path)]:
                    full = [path for path in paths if any(name.startswith(f"{path}.") for name in names)]
                    near = ", ".join(path for path in full if path.partition(".")[0] == empty[0].partition(".")[0])
                    raise ConfigError(f"{place}: {empty[0]} has no numbers in this run; those of {near} can be loaded")
                near = did_you_mean(pattern.removesuffix(".*"), known)
                raise ConfigError(f"{place} matches nothing that this run could load{near}")

    def renaming(self, source: str) -> list[tuple[str, str]]:
        """Return the renamings of what a source gives."""
        patterns = [pattern for pattern, text in self.sources.items() if text == source]
        met = {new for new in self.rename.values() for p in patterns if matches(p, new) or matches(new, p)}
        return [(old, new) for old, new in self.rename.items() if new in met]

    def key(self, pattern: str) -> str:
        """Return the key of the config that names a pattern."""
        return "init.from" if pattern in self.sources else "init.parts"

    def renamed(self, names: Collection[str], source: str) -> dict[str, str]:
        """Return each name of a source with its new name; if both exist, a renamed entry replaces an original one.

        Raises:
            ConfigError: a renaming matches nothing, or two entries would get the same name.
        """
        new_names: dict[str, str] = {}
        for old, new in self.renaming(source):
            renamed = {name: new_name for name in names if (new_name := _rename(old, new, name)) is not None}
            if not renamed:
                near = did_you_mean(old.removesuffix(".*"), names)
                raise ConfigError(f"init.rename: the parent holds nothing named '{old}'{near}")
            new_names |= renamed
        sources: dict[str, str] = {}
        for name, new_name in new_names.items():
            if new_name in sources:
                raise ConfigError(f"init.rename: both '{sources[new_name]}' and '{name}' would be '{new_name}'")
            sources[new_name] = name
        return {name: new_names.get(name, name) for name in names if name in new_names or name not in sources}

    def as_config(self, source: str) -> dict[str, Any]:
        """Return the settings for a source as the config has them, with short forms expanded."""
        override = {True: LOAD, False: "skip"}
        return {
            **{kind: override[loads] for kind, loads in self.kinds.items()},
            "parts": {p: override[loads] for p, loads in self.parts.items() if self.sources.get(p, source) == source},
            "rename": dict(self.renaming(source)),
            "mismatch": "skip" if self.lenient else "refuse",
        }


def settings_of(composed: Composed) -> Settings | None:
    """Return a config's settings for loading from a parent; None without a parent.

    Raises:
        ConfigError: settings contradict each other, or there are settings without a parent.
    """
    tree = plain(composed.config)
    init, load = tree.get("init") or {}, tree.get("load") or {}
    source = init.get("from")
    if source is None or source == {}:
        if init.get("parts") or init.get("rename"):
            raise ConfigError("init.from: a value is needed where init.parts or init.rename is given, or --from RUN")
        return None
    kinds = {kind: init[kind] == LOAD for kind in KINDS}
    setters = origins(composed.config, composed.layers)
    for kind, wanted in load.items():
        if wanted is None or wanted == kinds[kind]:
            continue
        setter = setters.get(("init", kind))
        if wanted or (setter is not None and not setter.packaged):  # a default of rlrun does not contradict
            raise ConfigError(
                f"load.{kind}={str(wanted).lower()} and init.{kind}={init[kind]} contradict each other; give one"
            )
        kinds[kind] = wanted
    parts = {pattern: override == LOAD for pattern, override in init["parts"].items()}
    if isinstance(source, str):
        source = {"*": source}
    else:  # these parts, and nothing else
        parts = {"*": False, **dict.fromkeys(source, True), **parts}
    return Settings(source, kinds, parts, init["rename"], init["mismatch"] != "refuse")


def matches(pattern: str, name: str) -> bool:
    """Return True if a pattern matches a name: it is the name, a prefix of it, or a glob."""
    return f"{name}.".startswith(f"{pattern}.") or fnmatchcase(name, pattern) or fnmatchcase(f"{name}.", pattern)


def _rename(old: str, new: str, name: str) -> str | None:
    if old.count("*") != new.count("*") or old.count("*") > 1:
        raise ConfigError(f"init.rename: '{old}: {new}': wanted names, or one * on both sides")
    if "*" in old:
        match = re.fullmatch(re.escape(old).replace(r"\*", "(.+)"), name)
        return None if match is None else new.replace("*", match[1])
    return new + name[len(old) :] if f"{name}.".startswith(f"{old}.") else None

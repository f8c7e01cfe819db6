"""Where a new run starts from, and the words that it begins with."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlrun import config as configuration
from rlrun import trust
from rlrun.config import Composed
from rlrun.config.origins import WORD, Layer
from rlrun.config.places import own_dirs
from rlrun.config.words import parse
from rlrun.errors import ConfigError, RunDirError
from rlrun.files import read_json
from rlrun.projects import in_a_run
from rlrun.rundir import RunDir, is_run

BLOCKS = ("init", "load")  # what a run itself was started from is no business of its children
PLAIN = re.compile(r"[A-Za-z0-9_./@+-]+")  # what Hydra's grammar takes without quotes
NAME = re.compile(r"[^:\s]+")
MARK = 8  # bytes before the header of a safetensors file


@dataclass(frozen=True)
class Parent:
    """What a new run starts from.

    Attributes:
        run: its run; None for a file, or a checkpoint's folder that lies in no run.
        place: the checkpoint's folder, or the file; None = the newest checkpoint of the run that is good.
    """

    run: RunDir | None
    place: Path | None

    @property
    def path(self) -> Path:
        """The checkpoint or the file, as far as it is decided; else the run."""
        path = self.place if self.place is not None else self.run.path if self.run is not None else None
        assert path is not None
        return path


def find(text: str) -> Parent:
    """Return what RUN, RUN@STEP, RUN@best, a checkpoint's folder or a .safetensors file stands for.

    Raises:
        RunDirError: it is none of these; the message lists the checkpoints there are, or names the nearest run.
    """
    path = Path(text).expanduser().absolute()
    if path.is_file():
        _require_safetensors(path)
        if (path.parent / "manifest.json").is_file() and (path.parent / "state.json").is_file():
            raise RunDirError(f"{path} is a part of a checkpoint; name its folder, {path.parent}")
        return Parent(None, path)
    if not path.exists() and "@" in text:
        base, _, which = text.rpartition("@")
        run = RunDir.open(Path(base).expanduser())
        return Parent(run, run.checkpoint(which))
    if (path / "manifest.json").is_file() and (path / "state.json").is_file():
        above = path.parent.parent
        return Parent(RunDir(above) if is_run(above) else None, path)
    return Parent(RunDir.open(path), None)


def _require_safetensors(path: Path) -> None:
    with open(path, "rb") as file:
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
    words: Iterable[str] | Composed, start: str, config_dir: Path | None = None, packages: Iterable[str] = ()
) -> Iterator[Composed]:
    """Compose the config of a run that starts from another: the parent's words first, then these.

    The parent can be somebody else's, so what its words import is limited for as long as the block lasts
    (`rlrun.trust`); what the user's words and files name is free.

    Args:
        words: of the new run; the last of the same key wins.
        start: RUN, RUN@STEP, RUN@best, a checkpoint's folder or a .safetensors file.
        config_dir: the user's own conf folder.
        packages: what the parent's words may import beyond what any run may.

    Raises:
        RunDirError: there is nothing to start from.
        ConfigError: the words do not compose, alone or behind those of the parent.
    """
    packages = list(packages)
    trust.require_of_use(packages)
    parent, words = find(start), words.words if isinstance(words, Composed) else list(words)
    overrides = [*words, f"init.from={_quoted(str(parent.path))}"]
    typed = {word.key: word.value for word in parse(words)}
    if "init.from" in typed:
        raise ConfigError("--from and init.from both say where the run starts from; leave one away")
    with _limits(parent, packages, typed):
        composed = _compose(parent, overrides, config_dir)
    folders = own_dirs(config_dir)
    own = [layer.content for layer in composed.layers if _is_own(layer, folders, parent)]
    with _limits(parent, packages, typed, own):
        yield composed


def _is_own(layer: Layer, folders: Iterable[Path], parent: Parent) -> bool:
    """Tell whether a layer is a file of the user's: it lies in no run, and not where the parent was unpacked."""
    path, run = Path(os.path.realpath(layer.label)), Path(os.path.realpath(parent.path))
    if layer.packaged or layer.label == WORD or in_a_run(path.parent):
        return False
    inside = [path.relative_to(folder).parts for folder in folders if path.is_relative_to(folder)]
    brought = [run.relative_to(folder).parts for folder in folders if run.is_relative_to(folder)]
    return bool(inside) and not any(parts[0] == run_parts[0] for parts in inside for run_parts in brought)


def _compose(parent: Parent, words: list[str], config_dir: Path | None) -> Composed:
    before = words_of(parent)
    try:
        return configuration.compose([*before, *words], config_dir=config_dir)
    except ConfigError as error:
        if not before:
            raise
        raise ConfigError(_whose(error, before, words, parent, config_dir)) from error


def _limits(
    parent: Parent, packages: Iterable[str], typed: Mapping[str, Any], own: Iterable[Mapping[str, Any]] = ()
) -> AbstractContextManager[None]:
    """Limit what the words of the parent import; what the user's words and files hold names parts but under `init`.

    The user's words stand above those of the parent, the files below: only the words speak for their keys.
    """
    if parent.run is None:
        return nullcontext()
    about = read_json(parent.run.manifest)
    project = about.get("project") if isinstance(about, dict) else None
    overrides, *files = [
        {key: value for key, value in tree.items() if key.split(".")[0] not in BLOCKS} for tree in (typed, *own)
    ]
    return trust.limited(packages, run=parent.run.path, project=project, typed={**overrides, "": files})


def _whose(error: ConfigError, before: list[str], words: list[str], parent: Parent, config_dir: Path | None) -> str:
    """Tell whether the words of the parent, those given now, or both together are wrong."""
    assert parent.run is not None
    alone = shlex.join(["rlrun", "train", *words])
    if _fails(before, config_dir):
        return f"the words of {parent.run.path} do not compose any more: {error}; without them: {alone}"
    place = f"{(NAME.match(str(error)) or [''])[0]}."  # every such error begins with the key that it is about
    if any(f"{word.key}.".startswith(place) for word in parse(words)) or _fails(words, config_dir) == str(error):
        return str(error)
    return f"{error}; the words of {parent.run.path} come before these; without them: {alone}"


def _fails(words: Iterable[str], config_dir: Path | None) -> str | None:
    try:
        configuration.compose(list(words), config_dir=config_dir)
    except ConfigError as error:
        return str(error)
    return None


def words_of(parent: Parent) -> list[str]:
    """Return the words that the parent was started with, but those that say what it started from itself.

    Raises:
        RunDirError: the file that holds them cannot be read.
        ConfigError: a word is malformed.
    """
    lines = [] if parent.run is None else parent.run.read_overrides()
    return [word.text for word in parse(lines) if word.key.split(".")[0] not in BLOCKS]


def pin(composed: Composed, place: Path) -> None:
    """Let a config and its words name the very checkpoint that was taken."""
    composed.config.init["from"] = str(place)
    words = [word for word in composed.words if parse([word])[0].key != "init.from"]
    composed.words[:] = [*words, f"init.from={_quoted(str(place))}"]


def _quoted(text: str) -> str:
    if PLAIN.fullmatch(text):
        return text
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

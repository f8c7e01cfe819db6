"""The run that a fork starts from, and the overrides that it repeats."""

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from rlrun import config as configuration
from rlrun.config import Composed
from rlrun.config.layers import OVERRIDE, Layer
from rlrun.config.overrides import listed, parse
from rlrun.config.places import own_dirs
from rlrun.core.errors import ConfigError
from rlrun.runs.directory import RunDir
from rlrun.runs.files import read_json
from rlrun.security import trust
from rlrun.security.projects import in_a_run

PLAIN = re.compile(r"[A-Za-z0-9_./@+-]+")  # text that Hydra's grammar accepts without quotes
NAME = re.compile(r"[^:\s]+")


def find(text: str) -> tuple[RunDir, str]:
    """Return the run that RUN, RUN@STEP or RUN@best names, and STEP, `best` or an empty text.

    Raises:
        RunDirError: there is no such run, or no such checkpoint; the message names those there are.
    """
    path = Path(text).expanduser()
    base, mark, which = text.rpartition("@")
    if mark and not path.exists():
        run = RunDir.open(Path(base).expanduser())
        run.checkpoint(which)
        return run, which
    return RunDir.open(path), ""


@contextmanager
def started(
    overrides: Iterable[str] | Composed, start: str, config_dir: Path | None = None, packages: Iterable[str] = ()
) -> Iterator[Composed]:
    """Compose the config of a run that starts from another: the parent's overrides first, then these.

    Another person may have made the parent, so the imports of its overrides are limited until the context ends
    (`rlrun.security.trust`); the user's own overrides and files are not limited.

    Args:
        overrides: of the new run; the last of the same key wins.
        start: RUN, RUN@STEP or RUN@best.
        config_dir: the user's own conf folder.
        packages: that the parent's overrides may import in addition to those of any run.

    Raises:
        RunDirError: there is no such run, or the file of its overrides cannot be read.
        ConfigError: the overrides do not compose, alone or after those of the parent.
    """
    packages = trust.require_of_use(packages)
    run, which = find(start)
    overrides = overrides.overrides if isinstance(overrides, Composed) else listed(overrides)
    typed = {override.key: override.value for override in parse(overrides) if not _is_init(override.key)}
    if "init.from" in (override.key for override in parse(overrides)):
        raise ConfigError("--from and init.from both name the run of all parts; give one of them")
    source = f"{run.path}@{which}" if which else str(run.path)
    overrides = [f"init.from={_quoted(source)}", *overrides]
    with _limits(run, packages, typed):
        before = [override.text for override in parse(run.read_overrides()) if not _is_init(override.key)]
        try:
            composed = configuration.compose([*before, *overrides], config_dir=config_dir)
        except ConfigError as error:
            raise ConfigError(_whose(error, overrides, run)) if before else error from error
    folders = own_dirs(config_dir)
    own = [
        {key: value for key, value in layer.content.items() if not _is_init(key)}
        for layer in composed.layers
        if _is_own(layer, folders, run)
    ]
    with _limits(run, packages, {**typed, "": own}):
        yield composed


def _is_init(key: str) -> bool:
    """Return True if a key says what a run starts from, which its forks do not repeat."""
    return key.split(".")[0] == "init"


def _is_own(layer: Layer, folders: Iterable[Path], run: RunDir) -> bool:
    """Return True if a layer is a user's file: outside of all runs, and not unpacked together with the parent."""
    path, parent = Path(os.path.realpath(layer.label)), Path(os.path.realpath(run.path))
    if layer.packaged or layer.label == OVERRIDE or in_a_run(path.parent):
        return False
    inside = [path.relative_to(folder).parts for folder in folders if path.is_relative_to(folder)]
    brought = [parent.relative_to(folder).parts for folder in folders if parent.is_relative_to(folder)]
    return bool(inside) and not any(parts[0] == run_parts[0] for parts in inside for run_parts in brought)


def _limits(run: RunDir, packages: Iterable[str], typed: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Limit the imports of the parent's overrides; the user's overrides and files may name any part, except in `init`.

    The user's overrides replace those of the parent, the user's files do not. So only keys of the overrides are free.
    """
    about = read_json(run.manifest)
    project = about.get("project") if isinstance(about, dict) else None
    return trust.limited(packages, typed, run=run.path, project=project)


def _whose(error: ConfigError, overrides: list[str], run: RunDir) -> str:
    """Return a message that names the parent, unless the error is about a key of the new overrides."""
    place = f"{(NAME.match(str(error)) or [''])[0]}."  # every such error begins with the key that it is about
    if any(f"{override.key}.".startswith(place) for override in parse(overrides)):
        return str(error)
    way_out = shlex.join(["rlrun", "train", *overrides])
    return f"{error}; the overrides of {run.path} come before these; without them: {way_out}"


def _quoted(text: str) -> str:
    return text if PLAIN.fullmatch(text) else "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

"""The parent run of a fork, and its overrides, which the fork repeats."""

import re
import shlex
from collections.abc import Iterable
from pathlib import Path

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlrun import config as configuration
from rlrun.config import Composed
from rlrun.config.files import one_line
from rlrun.config.overrides import listed, parse
from rlrun.core.errors import ConfigError, RunDirError
from rlrun.runs.directory import RunDir
from rlrun.runs.trust import require_trusted

PLAIN = re.compile(r"[A-Za-z0-9_./@+-]+")  # text that Hydra's grammar accepts without quotes
PART = re.compile(r"(.+):([A-Za-z_][\w.]*)")  # RUN:PART
CHOSEN = ("algorithm", "env")  # groups from which every run needs an option
NAME = re.compile(r"[^:\s]+")


def find(text: str) -> tuple[RunDir, str]:
    """Return the run of RUN, RUN@STEP or RUN@best, with STEP, `best` or "".

    Raises:
        RunDirError: there is no such run or checkpoint; the message names the existing ones.
    """
    path = Path(text).expanduser()
    base, mark, which = text.rpartition("@")
    if mark and not path.exists():
        run = RunDir.open(Path(base).expanduser())
        run.checkpoint(which)
        return run, which
    return RunDir.open(path), ""


def wanted(composed: Composed) -> dict[str, tuple[str, str] | None]:
    """Return the requests of `init`: prefix of parts -> run and name there ("" = the same name); None = take nothing.

    Raises:
        ConfigError: an interpolation leads nowhere.
    """
    try:
        init = OmegaConf.to_container(composed.config.init, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"init: {one_line(error)}") from error
    texts = {str(key): text for key, text in dict(init).items() if key != "strict"} if isinstance(init, dict) else {}
    return {key: None if text is None else _taken_apart(text) for key, text in texts.items()}


def _taken_apart(text: str) -> tuple[str, str]:
    """Split `RUN:PART`; a colon may also be part of an existing path."""
    named = None if Path(text).expanduser().exists() else PART.fullmatch(text)
    return (named[1], named[2]) if named else (text, "")


def require_there(runs: Iterable[tuple[str, str]]) -> None:
    """Refuse a key of `init` whose run or checkpoint does not exist.

    runs: keys with their runs.
    """
    for key, text in dict.fromkeys(runs):
        try:
            find(text)
        except RunDirError as error:
            raise RunDirError(f"init.{key}: {error}") from error


def started(
    overrides: Iterable[str] | Composed, start: str, config_dir: Path | None = None, *, trust: bool = False
) -> Composed:
    """Compose the config of a fork: the parent's overrides first, then the new ones.

    Args:
        overrides: of the new run; the last of the same key wins.
        start: RUN, RUN@STEP or RUN@best.
        config_dir: the user's own conf folder.
        trust: repeat the parent's overrides even if it was made elsewhere, and remember that it is trusted.

    Raises:
        RequestError: there is no such run, it is not trusted, or the file of its overrides cannot be read.
        ConfigError: the overrides do not compose, alone or after those of the parent.
    """
    run, which = find(start)
    require_trusted(run, trust)
    overrides = overrides.overrides if isinstance(overrides, Composed) else listed(overrides)
    if "init.from" in (override.key for override in parse(overrides)):
        raise ConfigError("--from and init.from both name the run of all parts; give one of them")
    source = f"{run.path}@{which}" if which else str(run.path)
    overrides = [f"init.from={_quoted(source)}", *overrides]
    before = [override.text for override in parse(run.read_overrides()) if not _is_init(override.key)]
    try:
        return configuration.compose([*before, *overrides], config_dir=config_dir)
    except ConfigError as error:
        raise ConfigError(_whose(error, before, overrides, run)) if before else error from error


def _is_init(key: str) -> bool:
    """Return True for keys of `init`, which forks do not repeat."""
    return key.split(".")[0] == "init"


def _whose(error: ConfigError, before: list[str], overrides: list[str], run: RunDir) -> str:
    """Return an error's message, naming the parent unless the error is about a key of the new overrides."""
    place = f"{(NAME.match(str(error)) or [''])[0]}."  # every such error begins with the key that it is about
    if any(f"{override.key}.".startswith(place) for override in parse(overrides)):
        return str(error)
    missing = {*CHOSEN} - {override.key for override in parse(overrides)}
    way_out = shlex.join(["rlrun", "train", *overrides, *(text for text in before if text.split("=")[0] in missing)])
    return f"{error}; the overrides of {run.path} come before these; without them: {way_out}"


def _quoted(text: str) -> str:
    return text if PLAIN.fullmatch(text) else "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

"""Trust: a run directory is code, so commands build only from runs that this user made or trusts.

When a run is made, digests of the files that name classes to build are stored in the user's state folder. A copy of a
run has the same digests. Each digest is the name of an empty file, so that writes are atomic.
"""

import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path

from platformdirs import user_state_path

from rlrun.core.errors import RequestError, printable
from rlrun.core.files import place_of, read_bytes, replace

_messages = logging.getLogger("rlrun")
SHOWN = 3  # files that a message names, at most
VARIABLE = "RLRUN_TRUST"  # further folders, separated as in PATH


def remember(*texts: str | bytes) -> None:
    """Trust these texts from now on; warn if they cannot be stored, as later commands then want `--trust`."""
    try:  # training must not fail by this; some users have no home
        folder = _state() / "trusted"
        folder.mkdir(parents=True, exist_ok=True)
        for text in texts:
            (folder / _digest(text)).touch()
    except (OSError, RuntimeError) as error:
        why = " ".join(str(error).split())
        _warn(f"what is made here cannot be remembered ({why}): commands on it will ask for --trust or {VARIABLE}")


@cache
def _warn(message: str) -> None:
    """Warn once a process."""
    _messages.warning("%s", message)


def require_trusted(run: str | os.PathLike[str], trust: bool = False) -> None:
    """Refuse to build from a run that was not made here.

    Args:
        run: its directory.
        trust: accept it, and remember it.

    Raises:
        RequestError: it is not trusted; the message names the way out.
    """
    run = place_of(run)
    require_remembered(run, said_by(run), trust, "this run was not made here")


def said_by(run: Path) -> list[tuple[Path, bytes]]:
    """Return the files of a run that name the classes to build, with their content."""
    paths = [run / name for name in ("config.yaml", "overrides.txt")]
    return [(path, read_bytes(path)) for path in paths if path.exists()]


def require_remembered(
    place: Path, texts: Iterable[tuple[Path, str | bytes]], trust: bool, why: str, way_out: str = ""
) -> None:
    """Refuse to build from texts, unless they are remembered or their place lies below a trusted folder.

    Args:
        place: the file or folder of the texts.
        texts: to build from, each with its file.
        trust: accept them, and remember them.
        why: the beginning of the message, which continues with the files to read.
        way_out: the end of the message.

    Raises:
        RequestError: a text is not trusted.
    """
    texts = list(texts)
    if trust:
        remember(*(text for _, text in texts))
    elif not any(place.resolve().is_relative_to(folder) for folder in folders()):
        unknown = list(dict.fromkeys(str(path) for path, text in texts if not _is_remembered(text)))
        if unknown:
            *shown, last = unknown if len(unknown) <= SHOWN else [*unknown[:SHOWN], f"{len(unknown) - SHOWN} more"]
            files = f"{', '.join(shown)} and {last}" if shown else last
            raise RequestError(f"{why}; read {files}, then say --trust{way_out}")


def _is_remembered(text: str | bytes) -> bool:
    try:
        return (_state() / "trusted" / _digest(text)).exists()
    except (OSError, RuntimeError):  # without a home nothing is remembered
        return False


def trust(folder: Path | str) -> None:
    """Trust all runs below a folder, now and later; the Python equivalent of `rlrun trust DIR`.

    Raises:
        RequestError: there is no such folder.
        RlrunError: the disk does not take the list.
    """
    path = Path(folder).resolve()
    if not str(folder) or "\n" in str(path) or not path.is_dir():
        raise RequestError(f"'{printable(str(folder))}' is no folder that can be trusted")
    try:
        _state().mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:
        why = " ".join(str(error).split())
        raise RequestError(f"nothing can be remembered ({why}); {VARIABLE} names folders, too") from error
    replace(_state() / "folders", "".join(f"{known}\n" for known in dict.fromkeys([*_noted(), path])).encode())


def folders() -> list[Path]:
    """Return the folders that the user trusts, those of `RLRUN_TRUST` last."""
    named = [Path(text).resolve() for text in os.environ.get(VARIABLE, "").split(os.pathsep) if text]
    return list(dict.fromkeys([*_noted(), *named]))


def _noted() -> list[Path]:
    with suppress(OSError, RuntimeError):
        return [Path(line) for line in (_state() / "folders").read_text().splitlines()]
    return []


def _state() -> Path:
    return user_state_path("rlrun", appauthor=False)


def _digest(text: str | bytes) -> str:
    return sha256(text.encode() if isinstance(text, str) else text).hexdigest()

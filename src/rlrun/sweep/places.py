"""Places in a sweep's folder. It may be somebody else's, and what is written there leads to no file beyond it."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from rlrun.core.errors import RunDirError
from rlrun.runs import lock as locks
from rlrun.runs.files import reason, require_own_file

HELD = ("jobs", "logs", "launches")  # folders
APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True)
class Task:
    """A job, as its process is told of it.

    Attributes:
        run: its run directory.
        overrides: of its command line.
        composed: what the user's overrides were composed to; None where the overrides came with the sweep's folder, and
            what they import is limited.
        owner: the coordinator that claimed the job; None where there is none.
        trust: packages that the user trusts beyond those of any run.
    """

    run: Path
    overrides: tuple[str, ...]
    config_dir: Path | None = None
    composed: bytes | None = None
    owner: str | None = None
    trust: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """The sweep's."""
        return self.run.parent.parent

    @property
    def log(self) -> Path:
        """The file for what its process prints."""
        return self.folder / "logs" / f"{self.run.name}.txt"


def open_own(path: Path) -> int:
    """Open a file for what is added to it, made where there is none; never wait for it.

    Raises:
        RunDirError: it is a link or no plain file, or cannot be written.
    """
    require_own_file(path)
    try:
        handle = os.open(path, APPEND, 0o666)
    except OSError as error:
        raise RunDirError(f"{path} cannot be used: {reason(error)}") from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise RunDirError(f"{path} cannot be used: it is no plain file")
    return handle


def locked(path: Path) -> int | None:
    """Return an open file whose lock this process holds; None where another process has it.

    Raises:
        RunDirError: it is no plain file, or files cannot be locked there.
    """
    handle = open_own(path)
    try:
        if locks.hold(handle):
            return handle
    except OSError as error:
        os.close(handle)
        raise RunDirError(f"{path} cannot be locked: {reason(error)}; a sweep needs a folder with locks") from error
    os.close(handle)
    return None


def require_own(folder: Path, *files: str) -> None:
    """Refuse a sweep's folder in which one of these files leads out of it, or what jobs write to.

    Raises:
        RunDirError: naming the symbolic link.
    """
    named = [folder / name for name in (*files, *HELD)]
    inside = (entry for name in HELD[:2] if (folder / name).is_dir() for entry in (folder / name).iterdir())
    for path in chain(named, inside):  # folders before what lies in them
        if path.is_symlink():
            raise RunDirError(f"{path} is a symbolic link, which a sweep does not follow")
        if not path.is_dir():
            require_own_file(path)

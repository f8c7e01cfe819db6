"""The folder of this user's caches, in which no other user may write."""

import os
import stat
import sys
from pathlib import Path

from platformdirs import user_cache_path


def private_folder(place: Path, *names: str) -> Path:
    """Return a folder below a place in which only this user may write; make both if they are missing.

    The path returned has no links, as the owner of a link may redirect it later.

    Raises:
        OSError: it cannot be made, or others may write to it, rename it, or write to a folder between it and the place.
        RuntimeError: links form a circle.
    """
    path = place
    for name in ("", *names):
        path = (path / name).resolve()
        path.mkdir(0o700, parents=True, exist_ok=True)
        if sys.platform != "win32":
            status = path.lstat()
            if status.st_uid != os.geteuid() or status.st_mode & 0o022:
                raise PermissionError(f"others may write to {path}; `chmod go-w` forbids it if it is yours")
    for above in path.parents if sys.platform != "win32" else ():
        if above.stat().st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:
            raise PermissionError(f"others may rename what is in {above}; `chmod +t` forbids it if it is yours")
    return path


def folder() -> Path:
    """Return the folder of rlrun's caches, where the user's system keeps them.

    Raises:
        RuntimeError: the user has no home.
    """
    return user_cache_path("rlrun", appauthor=False)

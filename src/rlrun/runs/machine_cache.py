"""What is found out about a machine once, and stays: an answer a file, among the user's caches.

What a clock decides can come out otherwise the next time. Every run of a machine takes the first answer, so that one
seed is one run there: side by side, one after the other, or begun again.
"""

import hashlib
import json
import os
import stat
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

from platformdirs import user_cache_path

from rlrun.runs.files import known, write_bytes

T = TypeVar("T")


def remembered(question: str, about: Mapping[str, Any], find: Callable[[], T], fits: Callable[[Any], bool]) -> T:
    """Return the first answer that this machine found to a question; find it if there is none.

    Where no cache can be written, it is found each time.

    Args:
        question: its name.
        about: all that the answer depends on, of JSON's types; where any of it changes, the question is another one.
        find: takes long.
        fits: returns whether what a file holds is an answer at all.
    """
    text = json.dumps({"question": question, **about}, sort_keys=True)
    try:
        path = folder() / f"{question}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    except RuntimeError:
        return find()
    cached: Any = known(path).get("answer")
    if fits(cached):
        return cast(T, cached)
    damaged = os.path.exists(path)  # unlike the path's own, it takes what is out of reach for missing
    answer = find()
    with suppress(OSError):
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        if damaged:
            path.unlink()
        mine = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
        try:
            write_bytes(mine, (json.dumps({"about": about, "answer": answer}, indent=2) + "\n").encode())
            with suppress(FileExistsError):  # another process was quicker
                os.link(mine, path)  # unlike a renaming, it leaves what is there
        finally:
            mine.unlink(missing_ok=True)
        cached = known(path).get("answer")
        answer = cached if fits(cached) else answer
    return answer


def private_folder(place: Path, *names: str) -> Path:
    """Return a folder below a place, of files that only this user may write; both are made if there is none.

    The path leads through no link, as the owner of a link may let it lead elsewhere later.

    Raises:
        OSError: it cannot be made, others may write to it or up to the place, or may put another one in its place.
        RuntimeError: links lead in a circle.
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
    """Return where the user's system keeps what can be found again.

    Raises:
        RuntimeError: the user has no home.
    """
    return user_cache_path("rlrun", appauthor=False)

"""The run lock, and other locks on files: one process at most holds each, and writes into the file who it is."""

import json
import os
import socket
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlrun.core.errors import RunDirError
from rlrun.core.files import head, open_own, open_regular, reason, write_all

BOOT, PROCESSES = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
_contents: set[int] = set()  # open files that this process has locked


def hold(handle: int) -> bool:
    """Lock an open file until it is released, or this process ends; False where another process holds it.

    A process that is forked from this one does not hold it.

    Raises:
        OSError: files cannot be locked there.
    """
    import filelock  # some commands need no lock, and end in the time that this takes

    if not filelock.lock_descriptor(handle, blocking=False):
        return False
    _contents.add(handle)
    return True


def locked(path: Path) -> int | None:
    """Return an open file whose lock this process holds; None where another process has it.

    Raises:
        RunDirError: it is not a plain file, or files cannot be locked there.
    """
    handle = open_own(path)
    try:
        if hold(handle):
            return handle
    except OSError as error:
        os.close(handle)
        raise RunDirError(f"{path} cannot be locked: {reason(error)}; a sweep needs a folder with locks") from error
    os.close(handle)
    return None


def release(handle: int) -> None:
    """Close a file, and with it let go of its lock."""
    _contents.discard(handle)
    with suppress(OSError):  # a process that was forked has closed it already
        os.close(handle)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: [*map(release, [*_contents])])


def is_held(path: Path) -> bool | None:
    """Return True if a process holds the lock of a file; None where that cannot be asked."""
    try:
        handle = open_regular(path)
    except RunDirError:
        return None
    try:
        return not hold(handle)
    except OSError:
        return None
    finally:
        release(handle)


def sign(handle: int, *, locked: bool) -> str:
    """Write into an open file that it is this process's; return the token that no other process has.

    Raises:
        OSError: the disk does not take it.
    """
    token, pid = uuid.uuid4().hex, os.getpid()
    signature = {"token": token, "host": socket.gethostname(), "pid": pid, "locked": locked}
    os.ftruncate(handle, 0)
    os.lseek(handle, 0, os.SEEK_SET)
    write_all(handle, json.dumps({**signature, "boot": boot(), "started": started(pid)}).encode() + b"\n")
    return token


def is_alive(signature: dict[str, Any]) -> bool | None:
    """Return True if the process that signed a file is there; None where another machine or container counts it.

    A process number alone says nothing: it is given out again, also after the machine restarted.
    """
    begun, own = signature.get("started"), started(os.getpid())
    if signature.get("boot") != boot() or own is None or str(begun).split(" ")[0] != own.split(" ")[0]:
        return None
    return started(signature.get("pid")) == begun


def boot() -> str:
    """Return what names this machine since it was started; its name where the system does not report it."""
    return head(BOOT, 64).decode().strip() or socket.gethostname()


def started(pid: object) -> str | None:
    """Return where process numbers count, and when a process of that number was started; None where there is none."""
    try:
        if isinstance(pid, int):
            after = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
            return f"{os.readlink(PROCESSES)} {after.split()[19]}"  # clock ticks since the machine was started
    except (OSError, IndexError):
        pass
    return None

"""The run lock, and other locks on files; the process that holds a lock signs the file."""

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
    """Lock an open file until `release` or the end of this process; return False if another process holds it.

    Forked processes do not hold it.

    Raises:
        OSError: files cannot be locked there.
    """
    import filelock  # here, as commands without a lock would take twice the time by it

    if not filelock.lock_descriptor(handle, blocking=False):
        return False
    _contents.add(handle)
    return True


def locked(path: Path) -> int | None:
    """Return an open file whose lock this process holds; None if another process holds it.

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
    """Close a file, which releases its lock."""
    _contents.discard(handle)
    with suppress(OSError):  # a process that was forked has closed it already
        os.close(handle)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: [*map(release, [*_contents])])


def is_held(path: Path) -> bool | None:
    """Return True if a process holds the lock of a file; None if that cannot be tested."""
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
    """Write this process's signature into an open file; return its unique token.

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
    """Return True if the process that signed a file is alive; None if it is of another machine or container.

    The number alone is not enough: numbers are reused, also after a restart of the machine.
    """
    begun, own = signature.get("started"), started(os.getpid())
    if signature.get("boot") != boot() or own is None or str(begun).split(" ")[0] != own.split(" ")[0]:
        return None
    return started(signature.get("pid")) == begun


def boot() -> str:
    """Return an id of this machine's last start; its host name if the system does not report one."""
    return head(BOOT, 64).decode().strip() or socket.gethostname()


def started(pid: object) -> str | None:
    """Return the process namespace, and the start time of the process of a number; None if there is none."""
    try:
        if isinstance(pid, int):
            after = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
            return f"{os.readlink(PROCESSES)} {after.split()[19]}"  # clock ticks since the machine was started
    except (OSError, IndexError):
        pass
    return None

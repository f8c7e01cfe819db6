"""Numbered files in a folder, which any thread or process creates, reads, updates and deletes by their number."""

import os
import re
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from stat import S_ISREG

from rlrun.core.errors import RlrunError
from rlrun.core.files import reason, replace, write_bytes


@dataclass(frozen=True)
class Item:
    """A file.

    Attributes:
        handle: its number.
        created: time of the last write, UTC.
        path: of the file.
    """

    handle: int
    created: datetime
    path: Path


class Items:
    """The files `PREFIX<number>SUFFIX` of a folder, which is made if it is missing; writes are atomic.

    Args:
        folder: of the files.
        prefix, suffix: of their names, such as `episode_` and `.json`.
    """

    def __init__(self, folder: Path | str, prefix: str = "item_", suffix: str = "") -> None:
        self.folder, self.prefix, self.suffix = Path(folder), prefix, suffix
        self.folder.mkdir(parents=True, exist_ok=True)
        self._named = re.compile(rf"{re.escape(prefix)}(\d+){re.escape(suffix)}")

    def path_of(self, handle: int) -> Path:
        """Return the path of the file of a number; the file may be missing."""
        return self.folder / f"{self.prefix}{handle:06d}{self.suffix}"

    def items(self) -> list[Item]:
        """Return all files, the oldest number first."""
        handles = {int(match[1]) for path in self.folder.iterdir() if (match := self._named.fullmatch(path.name))}
        return [item for handle in sorted(handles) if (item := self.get(handle)) is not None]

    def latest(self) -> Item | None:
        """Return the file of the highest number, or None."""
        return next(reversed(self.items()), None)

    def get(self, handle: int) -> Item | None:
        """Return the file of a number, or None."""
        path = self.path_of(handle)
        try:
            status = path.stat()
        except FileNotFoundError:  # another process may have just deleted it
            return None
        return Item(handle, datetime.fromtimestamp(status.st_mtime, UTC), path) if S_ISREG(status.st_mode) else None

    def create(self, content: bytes | Path) -> Item:
        """Write bytes, or the content of another file, under the next number.

        The next number is one above the highest, so that the number of a deleted newest file is reused.

        Raises:
            RlrunError: the other file cannot be read, the disk does not take it, or the content has another type.
        """
        if not isinstance(content, bytes | Path):
            raise RlrunError(f"{self.folder}: wanted bytes or a Path as content, got a {type(content).__name__}")
        try:
            data = content.read_bytes() if isinstance(content, Path) else content
        except OSError as error:
            raise RlrunError(f"{content!s} cannot be read: {reason(error)}") from error
        temporary = self.folder / f".{self.prefix}{os.getpid()}-{threading.get_ident()}.tmp"
        last = self.latest()
        handle = 1 if last is None else last.handle + 1
        try:
            write_bytes(temporary, data)
            while True:
                try:
                    os.link(temporary, self.path_of(handle))  # fails if another thread or process was faster
                    break
                except FileExistsError:
                    handle += 1
        except OSError as error:
            raise RlrunError(f"{self.path_of(handle)} cannot be written: {reason(error)}") from error
        finally:
            temporary.unlink(missing_ok=True)
        return self._existing(handle)

    def update(self, handle: int, content: bytes) -> Item:
        """Replace the content of a file as a whole.

        Raises:
            RlrunError: there is no such number, or the disk does not take it.
        """
        replace(self._existing(handle).path, content)
        return self._existing(handle)

    def delete(self, handle: int) -> None:
        """Remove a file.

        Raises:
            RlrunError: there is no such number.
        """
        self._existing(handle).path.unlink()

    def _existing(self, handle: int) -> Item:
        item = self.get(handle)
        if item is None:
            raise RlrunError(f"{self.folder} has no file number {handle}")
        return item

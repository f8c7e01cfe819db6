"""Files of a folder that are numbered: made, found again and removed by any thread."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rlrun.errors import RlrunError
from rlrun.files import replace


@dataclass(frozen=True)
class Item:
    """A file.

    Attributes:
        handle: its number.
        created: when, UTC.
        path: where.
    """

    handle: int
    created: datetime
    path: Path


class Items:
    """The files `PREFIX<number>.<EXTENSION>` of a folder; those that lie there already are among them.

    Args:
        folder: made where it is missing.
        prefix: of the names.
        extension: of the names, without the dot.
    """

    def __init__(self, folder: Path, prefix: str = "", extension: str = "bin") -> None:
        self.folder, self.prefix, self.extension = folder, prefix, extension
        self._lock = threading.RLock()
        self._items: dict[int, Item] = {}
        folder.mkdir(parents=True, exist_ok=True)
        pattern = re.compile(rf"{re.escape(prefix)}(\d+)\.{re.escape(extension)}")
        for path in folder.iterdir():
            match = pattern.fullmatch(path.name)
            if match and path.is_file():
                created = datetime.fromtimestamp(path.stat().st_mtime, UTC)
                self._items[int(match[1])] = Item(int(match[1]), created, path)

    def path_of(self, handle: int) -> Path:
        """Return where the file of a number lies, or would."""
        return self.folder / f"{self.prefix}{handle:06d}.{self.extension}"

    def create_with_data(self, data: bytes) -> Item:
        """Write a file with the next number."""
        return self.create_with_saver(lambda path: replace(path, data))

    def create_with_saver(self, save: Callable[[Path], None]) -> Item:
        """Let a function write the file with the next number."""
        with self._lock:
            handle = max(self._items, default=0) + 1
            save(self.path_of(handle))
            return self.add(handle)

    def add(self, handle: int) -> Item:
        """Take in a file that was written to `path_of` its number.

        Raises:
            RlrunError: it is not there.
        """
        path = self.path_of(handle)
        if not path.is_file():
            raise RlrunError(f"{path} is not there")
        with self._lock:
            self._items[handle] = Item(handle, datetime.now(UTC), path)
            return self._items[handle]

    def update(self, handle: int, data: bytes) -> Item:
        """Write a file anew.

        Raises:
            RlrunError: there is no such number, or somebody else removed the file.
        """
        with self._lock:
            replace(self._there(handle).path, data)
            return self.add(handle)

    def delete(self, handle: int) -> None:
        """Remove a file, and what is told of it beside.

        Raises:
            RlrunError: there is no such number, or somebody else removed the file.
        """
        with self._lock:
            path = self._there(handle).path
            path.unlink()
            path.with_name(f"{path.name}.json").unlink(missing_ok=True)
            del self._items[handle]

    def get(self, handle: int) -> Item | None:
        """Return the file of a number, or None."""
        with self._lock:
            return self._items.get(handle)

    def items(self) -> list[Item]:
        """Return all files, the oldest number first."""
        with self._lock:
            return [self._items[handle] for handle in sorted(self._items)]

    def latest(self) -> Item | None:
        """Return the file of the highest number, or None."""
        return next(reversed(self.items()), None)

    def _there(self, handle: int) -> Item:
        item = self._items.get(handle)
        if item is None:
            raise RlrunError(f"{self.folder} has no file number {handle}")
        if not item.path.is_file():
            del self._items[handle]
            raise RlrunError(f"{item.path} was removed by somebody else")
        return item

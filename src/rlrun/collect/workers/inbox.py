"""What one thread leaves for another."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any


class Inbox:
    """Things in the order in which they came; whoever takes them may wait for the next one."""

    def __init__(self) -> None:
        self.closed = False  # nothing more will come
        self._queue: deque[Any] = deque()
        self._news = threading.Condition()

    def put(self, thing: Any) -> None:
        """Leave something; never waits."""
        with self._news:
            self._queue.append(thing)
            self._news.notify()

    def close(self) -> None:
        """Say that nothing more will come."""
        with self._news:
            self.closed = True
            self._news.notify_all()

    def get(self, seconds: float | None = None) -> Any:
        """Take the next thing, or None where none has come in time, or none will.

        seconds: to wait; None = for ever.
        """
        if not self._queue and seconds == 0.0:
            return None
        with self._news:
            if not self._queue:
                self._news.wait_for(lambda: self._queue or self.closed, seconds)
            return self._queue.popleft() if self._queue else None

    def __len__(self) -> int:
        return len(self._queue)

"""One piece of work at a time beside training."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Background:
    """Runs work in a thread, and hands its failure to whoever asks next."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, work: Callable[[], None]) -> None:
        """Begin; nothing else may be running. The thread dies with the process, like the process would."""
        self._thread = threading.Thread(target=self._run, args=(work,), name="checkpoint", daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._error = error

    def wait(self) -> None:
        """Return once nothing is running.

        Raises:
            BaseException: what the work raised.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def check(self) -> None:
        """Do what `wait` does if nothing is running any more.

        Raises:
            BaseException: what the work raised.
        """
        if self._thread is not None and not self._thread.is_alive():
            self.wait()

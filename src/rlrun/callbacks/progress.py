"""The progress of a run on a terminal."""

import math
import os
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

from rlrun.runs.directory import RunDir
from rlrun.runs.progress import line, position


class Terminal:
    """One live line on a terminal; elsewhere plain lines at an interval. Both on standard error, never wrapped.

    Args:
        total: environment steps (updates, without an environment) of the whole run.
        offline: updates before the first environment step; until then a line counts these.
        seconds: between plain lines, at least.
        stream: standard error unless given.
    """

    writes_files = False

    def __init__(
        self, total: int | None = None, *, offline: int = 0, seconds: float = 10.0, stream: TextIO | None = None
    ) -> None:
        self.total = total
        self.offline = offline
        self.seconds = seconds
        self.stream = stream
        self._known: dict[str, Any] = {}
        self._first: int | None = None  # updates of the first record after warm-up
        self._unseen = False
        self._printed = -math.inf
        self._live: Any = None

    def open(self, run: RunDir | None, config: Mapping[str, Any], *, records: int, axis: int) -> None:
        stream = self.stream or sys.stderr
        if stream.isatty() and os.environ.get("TERM") != "dumb":
            self._live = _live(stream)

    def write(self, record: Mapping[str, Any]) -> None:
        self._known.update(record)
        self._unseen = True
        if self._first is None and record["updates"]:
            self._first = record["updates"]
        pause = self.seconds if self._live is None else 0.1  # faster redrawing costs time
        counts = self.total and (record["env_steps"] or not self.offline)
        if self._live is None and counts and position(record) >= (self.total or 0):
            return  # the last line is printed at the end, once, with the last evaluation
        if time.monotonic() - self._printed >= pause:
            self._show()

    def close(self, error: BaseException | None) -> None:
        if self._unseen:
            self._show()
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _show(self) -> None:
        self._printed = time.monotonic()
        self._unseen = False
        learns = not self._known["env_steps"] or self._known["updates"] > (self._first or 0)
        shown: dict[str, Any] = {"offline": self.offline, "with_bar": self._live is not None, "to_go": learns}
        text = line(self._known, total=self.total, **shown)
        if self._live is None:
            print(text, file=self.stream or sys.stderr, flush=True)
            return
        from rich.text import Text

        if not self._live.is_started:
            self._live.start()
        self._live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)


def _live(stream: TextIO) -> Any:
    from rich.console import Console
    from rich.live import Live

    # no refresh thread: it would interrupt training ten times a second
    return Live(console=Console(file=stream), auto_refresh=False, redirect_stdout=False)

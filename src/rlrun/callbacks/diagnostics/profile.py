"""A trace of some updates by torch's profiler."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.profiler import profile

from rlrun.core.errors import ConfigError
from rlrun.runs.directory import RunDir
from rlrun.training.callback import Callback


class Profile(Callback):
    """Write one trace of some updates, and of the collecting between them, to `trace.json` of the run.

    chrome://tracing, Perfetto and TensorBoard open it. These updates are slower. A run that ends early writes the
    trace so far.

    Args:
        first: first update, counted from 1.
        last: last update, included.

    Raises:
        ConfigError: the last comes before the first.
    """

    cycle = 1
    leads = True

    def __init__(self, first: int = 100, last: int = 120) -> None:
        if not 1 <= first <= last:
            raise ConfigError(f"profile: wanted 1 <= first <= last, got first={first} and last={last}")
        self.first = first
        self.last = last
        self._run: RunDir | None = None
        self._profiler: Any = None

    def begin_training(self, run_dir: Path | None, update: int = 0) -> None:
        self._run = None if run_dir is None else RunDir(run_dir)
        if self._run is not None and self.first <= update < self.last:
            self._run.echo(
                f"profile: no trace: the run was resumed at update {update + 1}, after profile.first={self.first}"
            )

    def begin_cycle(self, update: int) -> None:
        if update != self.first or self._run is None:
            return
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # it prints when it begins and ends, otherwise
        self._profiler = profile()
        self._profiler.start()

    def end_cycle(self, update: int) -> None:
        if update >= self.last:
            self._write()

    def end_training(self, error: BaseException | None) -> None:
        self._write()

    def _write(self) -> None:
        profiler, self._profiler = self._profiler, None
        if profiler is None or self._run is None:
            return
        profiler.stop()
        part = self._run.trace.with_suffix(".part")
        profiler.export_chrome_trace(str(part))
        os.replace(part, self._run.trace)
        self._run.echo(f"profile: {self._run.trace}")

    def note(self, path_of: Callable[[object], str]) -> str:
        return f"traces updates {self.first} to {self.last}"

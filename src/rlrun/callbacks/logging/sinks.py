"""Sinks of metric records by name, and those without a service: `metrics.jsonl` and the terminal."""

import errno
import inspect
import json
import math
import os
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any, TextIO

from rlrun.callbacks.logging.mlflow import Mlflow
from rlrun.callbacks.logging.record import Record, Sink, Tracker
from rlrun.callbacks.logging.tensorboard import TensorBoard
from rlrun.callbacks.logging.trackio import Trackio
from rlrun.callbacks.logging.wandb import Wandb
from rlrun.core.errors import BuildError, ConfigError, RlrunError, did_you_mean
from rlrun.core.files import finite, reason
from rlrun.runs.directory import RunDir
from rlrun.runs.heartbeat import require_own
from rlrun.runs.progress import line, position

LONGEST = 1 << 24  # bytes of a line


class Jsonl(Sink):
    """`metrics.jsonl`: one JSON object a line; a number that JSON lacks (NaN, infinity) is null.

    The checkpointer syncs the file before it saves a state.

    Attributes:
        approximate: why the file differs from that of an uninterrupted run, or None.
    """

    writes_files = True

    def __init__(self) -> None:
        self.approximate: str | None = None
        self._handle: int | None = None
        self._run: RunDir | None = None
        self._path = ""

    def open(self, run: RunDir | None, config: Mapping[str, Any], *, records: int = 0, axis: int = 0) -> None:
        assert run is not None
        self._run, self._path = run, str(run.metrics)
        try:
            self._handle = os.open(run.metrics, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            count = size = 0
            with open(run.metrics, "rb") as file:
                while count < records and (line := file.readline(LONGEST)).endswith(b"\n"):
                    count, size = count + 1, size + len(line)
            os.ftruncate(self._handle, size)
            if count < records:
                self.approximate = f"{run.metrics.name} has lost {records - count} of {records} records"
        except OSError as error:
            raise RlrunError(f"{self._path} cannot be opened: {reason(error)}") from error

    def write(self, record: Record) -> None:
        """Append a line.

        Raises:
            RlrunError: it cannot be written.
            LostRun: another process has taken over the run.
        """
        assert self._handle is not None
        assert self._run is not None
        require_own(self._run)
        line = json.dumps(finite(record), allow_nan=False).encode() + b"\n"
        try:
            if os.write(self._handle, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise RlrunError(f"{self._path} cannot be written: {reason(error)}") from error

    def close(self, failed: bool = False) -> None:
        if self._handle is not None:
            handle, self._handle = self._handle, None
            try:
                os.fsync(handle)
            except OSError as failure:
                raise RlrunError(f"{self._path} cannot be written: {reason(failure)}") from failure
            finally:
                os.close(handle)


class Terminal(Sink):
    """One live line on a terminal, plain lines at an interval elsewhere; on standard error, never wrapped.

    Args:
        total: environment steps (updates, without an environment) of the whole run.
        offline: updates before the first environment step; until then a line counts these.
        seconds: least time between plain lines.
        stream: standard error unless given.
    """

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

    def open(self, run: RunDir | None, config: Mapping[str, Any], *, records: int = 0, axis: int = 0) -> None:
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

    def close(self, failed: bool = False) -> None:
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


SINKS: dict[str, type[Any]] = {
    "terminal": Terminal,
    "jsonl": Jsonl,
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "mlflow": Mlflow,
    "trackio": Trackio,
}


def make_sinks(
    names: Iterable[Any] | None = None, *, total: int | None = None, offline: int = 0, axis: str = "env_steps"
) -> list[Sink]:
    """Return the sinks of the config's `logger` list; `jsonl` is always the first.

    Args:
        names: each a name, a mapping of one name to its arguments, or a sink.
        total: the run's budget on the axis of records, for the terminal.
        offline: updates before the first environment step.
        axis: of TensorBoard, W&B, MLflow and trackio.

    Raises:
        ConfigError: an unknown name, or one given twice.
        BuildError: arguments that a sink does not accept.
        MissingExtra: a sink's package is not installed.
    """
    wanted: dict[str, Mapping[str, Any]] = {"jsonl": {}}
    sinks: list[Sink] = []
    for entry in names or ():
        if isinstance(entry, Sink):
            sinks.append(entry)
            continue
        if isinstance(entry, Mapping) and len(entry) == 1:
            ((name, arguments),) = entry.items()
        else:
            name, arguments = str(entry), {}
        if not isinstance(entry, str | Mapping):
            kind = f"a {type(entry).__module__}.{type(entry).__qualname__}"
            raise ConfigError(f"logger: {kind} is not a sink; derive it from rlrun.callbacks.Sink (docs/metrics.md)")
        if name not in SINKS:
            raise ConfigError(f"logger '{name}' is unknown; there are {', '.join(SINKS)}{did_you_mean(name, SINKS)}")
        wanted[name] = {**({"total": total, "offline": offline} if name == "terminal" else {}), **(arguments or {})}
    chosen = [_make(name, arguments) for name, arguments in wanted.items()]
    for sink in chosen:
        if isinstance(sink, Tracker):
            sink.offline, sink.axis = offline, axis
    return chosen + sinks


def _make(name: str, arguments: Mapping[str, Any]) -> Sink:
    settings = [key for key in inspect.signature(SINKS[name]).parameters if key not in ("total", "offline")]
    for key in arguments.keys() - {*settings, "total", "offline"}:
        listed = f"; it takes {', '.join(settings) or 'none'}"
        raise BuildError(f"logger.{name}: no setting '{key}'{did_you_mean(key, settings) or listed}")
    sink: Sink = SINKS[name](**arguments)
    return sink

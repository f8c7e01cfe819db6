"""Sinks of metric records: files, terminal and services."""

import errno
import inspect
import json
import math
import os
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Protocol, TextIO

from rlrun.callbacks.record import BEST, FINAL, Placed, Record, as_gif, gif, hyperparameters
from rlrun.callbacks.trackers import Mlflow, Trackio, Wandb
from rlrun.core.errors import BuildError, ConfigError, MissingExtra, RlrunError, did_you_mean
from rlrun.runs.directory import RunDir
from rlrun.runs.files import finite, reason
from rlrun.runs.heartbeat import require_own
from rlrun.runs.progress import line, position, values_of
from rlrun.training.metrics import Distribution, Image, Text, Video

LONGEST = 1 << 24  # bytes of a line


class Sink(Protocol):
    """Receives records in the order of time, except for results of evaluations in a process of their own.

    After an error it is closed and opened again.

    With an attribute `media` that is True, records have `Distribution`, `Image`, `Video` and `Text` as well; otherwise
    they have numbers alone. With a true attribute `artifacts`, its method `send(run)` is called before `close`.
    """

    writes_files: bool  # left out of a run without a directory

    def open(self, run: RunDir | None, config: Mapping[str, Any], *, records: int, axis: int) -> None:
        """Start, or continue after so many records, the last at `axis`; forget later ones."""

    def write(self, record: Record) -> None:
        """Write one record."""

    def close(self, error: BaseException | None) -> None:
        """Finish; `error` is the run's failure, or None."""


class Jsonl:
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

    def open(self, run: RunDir | None, config: Mapping[str, Any], *, records: int, axis: int) -> None:
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

    def close(self, error: BaseException | None) -> None:
        if self._handle is not None:
            handle, self._handle = self._handle, None
            try:
                os.fsync(handle)
            except OSError as failure:
                raise RlrunError(f"{self._path} cannot be written: {reason(failure)}") from failure
            finally:
                os.close(handle)


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


class TensorBoard(Placed):
    """`tensorboard/`: tags are the metrics' names.

    The config is the text `config`. The HParams tab has the run's overrides and the algorithm's numbers, and the final
    and the best evaluation. Each evaluation's video is a GIF.
    """

    def __init__(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
            from torch.utils.tensorboard.summary import hparams
        except ImportError:
            raise MissingExtra("logger tensorboard", "tensorboard", "tensorboard") from None
        self._make = SummaryWriter
        self._summaries: Any = hparams
        self._writer: Any = None
        self._run: RunDir | None = None
        self._at = 0  # axis of the newest record

    def open(self, run: RunDir | None, config: Mapping[str, Any], *, records: int, axis: int) -> None:
        assert run is not None
        purge = axis + 1 if records else 0  # hides records after the checkpoint of an interrupted run
        self._writer = self._make(str(run.tensorboard), purge_step=purge)  # type: ignore[no-untyped-call]
        self._run, self._at = run, axis
        if run.config.is_file():
            text = run.config.read_text(encoding="utf-8", errors="replace")
            self._writer.add_text("config", f"```\n{text}\n```", axis)
        self._hparams = self._summaries(hyperparameters(run, config), dict.fromkeys((FINAL, BEST), 0.0))
        for summary in self._hparams[:2]:
            self._writer._get_file_writer().add_summary(summary)

    def write(self, record: Record) -> None:
        self._at = at = self.place(record)
        for name, value in record.items():
            if isinstance(value, Distribution):
                self._add_histogram(name, value, at)
            elif isinstance(value, Image):
                self._writer.add_image(name, value.pixels, at, dataformats="HWC")
            elif isinstance(value, Video):
                self._add_gif(name, gif(value), at)
            elif isinstance(value, Text):
                self._writer.add_text(name, value.text, at)
            else:
                self._writer.add_scalar(name, value, at)
        if FINAL in record:
            self._add_evaluation(record, at)
        self._writer.flush()  # a full disk is noticed by this record, not by a later one

    def _add_histogram(self, name: str, value: Distribution, at: int) -> None:
        counts, edges = value.counts.tolist(), value.edges.tolist()  # TensorBoard's first bin ends at the first edge
        self._writer.add_histogram_raw(name, edges[0], edges[-1], sum(counts), 0, 0, edges, [0, *counts], at)

    def _add_evaluation(self, record: Record, at: int) -> None:
        assert self._run is not None
        path = self._run.evaluation_video(record["env_steps"], record["updates"], offline=self.offline > 0)
        if path.is_file() and not path.is_symlink():
            with suppress(RlrunError):  # the video itself is there
                self._add_gif("evaluation/video", as_gif(path), at)

    def _add_gif(self, name: str, data: bytes, at: int) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        width, height = (int.from_bytes(data[place : place + 2], "little") for place in (6, 8))
        # torch's `add_video` writes the same, by moviepy
        image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=data)
        self._writer._get_file_writer().add_summary(Summary(value=[Summary.Value(tag=name, image=image)]), at)

    def close(self, error: BaseException | None) -> None:
        assert self._run is not None
        if returns := [*filter(math.isfinite, values_of(self._run.metrics, FINAL))]:
            self._writer.add_scalar(BEST, max(returns), self._at)
        self._writer._get_file_writer().add_summary(self._hparams[2])
        self._writer.close()


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
    """Return the sinks of the config's `logger` list; `jsonl` is among them always, and first.

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
        if hasattr(entry, "write"):
            sinks.append(entry)
            continue
        if isinstance(entry, Mapping) and len(entry) == 1:
            ((name, arguments),) = entry.items()
        else:
            name, arguments = str(entry), {}
        if name not in SINKS:
            raise ConfigError(f"logger '{name}' is unknown; there are {', '.join(SINKS)}{did_you_mean(name, SINKS)}")
        wanted[name] = {**({"total": total, "offline": offline} if name == "terminal" else {}), **(arguments or {})}
    chosen = [_make(name, arguments) for name, arguments in wanted.items()]
    for sink in chosen:
        if isinstance(sink, Placed):
            sink.offline, sink.axis = offline, axis
    return chosen + sinks


def _make(name: str, arguments: Mapping[str, Any]) -> Sink:
    settings = [key for key in inspect.signature(SINKS[name]).parameters if key not in ("total", "offline")]
    for key in arguments.keys() - {*settings, "total", "offline"}:
        listed = f"; it takes {', '.join(settings) or 'none'}"
        raise BuildError(f"logger.{name}: no setting '{key}'{did_you_mean(key, settings) or listed}")
    if not isinstance(arguments.get("artifacts", False), bool):
        raise BuildError(f"logger.{name}.artifacts: wanted true or false, got {arguments['artifacts']!r}")
    sink: Sink = SINKS[name](**arguments)
    return sink

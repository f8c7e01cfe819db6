"""Write the metrics of all callbacks to sinks."""

import logging
import os
import resource
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rlrun.callbacks.logging.record import Record, Sink, axis_of
from rlrun.callbacks.logging.sinks import Jsonl
from rlrun.callbacks.schedule import due_offline, following
from rlrun.core.clock import Spent
from rlrun.core.errors import RlrunError
from rlrun.core.spaces import row_count
from rlrun.core.typing import Batch
from rlrun.runs.directory import RunDir
from rlrun.training.callback import Callback, Hook, Stop
from rlrun.training.metrics import MEDIA, Windows, as_record, numbers_of, packed, unpacked

_messages = logging.getLogger("rlrun")
MIB = 1 << 20
STATM = Path("/proc/self/statm")  # of Linux: sizes in pages, the second is the memory in use


class Logger(Callback):
    """Read the metrics of all callbacks at an interval, and write one record to every sink.

    A record is `{"env_steps", "updates", "seconds", **metrics}`. Without a collector `env_steps` is 0 and the axis is
    updates. Each update has one record at most. It stays open for evaluations of the same update, and is written at the
    end of the next update or of training.

    Only `seconds`, names under `time/` and `system/`, and names ending in `_per_second` depend on the clock. A sink
    that raises is dropped with one warning, unless it raises an `RlrunError`. The logger comes after the evaluator, to
    end with its last record.

    Args:
        sinks: where records go.
        every: environment steps (updates, where there is no collector); 0 or None = only at the end.
        offline: updates before the first environment step; every so many of them, and the last, count as well.
        axis: of `sinks`, a key of records; with `samples`, records count the rows of all batches so far.

    Attributes:
        samples: rows of all batches so far, if they are the axis.
        approximate: why `metrics.jsonl` lacks records from before a resume, or None.
    """

    cycle = 1
    leads = True

    def __init__(self, sinks: Iterable[Sink], *, every: int | None, offline: int = 0, axis: str = "env_steps") -> None:
        self.every = every
        self.offline = offline
        self.axis = axis
        self.samples = 0
        self._all = list(sinks)
        self._sinks: list[Sink] = []  # open ones
        self.approximate: str | None = None
        self._callbacks: Mapping[str, Callback] = {}
        self._loader: Any = None
        self._start = time.perf_counter()
        self._before = 0.0  # seconds of training before this process
        self._last = {"env_steps": 0, "updates": 0, "seconds": 0.0}  # of the newest record of all callbacks' metrics
        self._records = 0
        self._newest = 0  # axis of the newest counted record
        self._open: Record | None = None  # of the newest update that has any; counted as soon as it is written
        self._uncounted: Record = {}  # of the end of training
        self._pending: Record | None = None  # a due record that was not counted, because training stopped
        self._due = following(0, every)
        self._windows = Windows()  # of metrics that no hook returned
        self._saved: dict[str, Any] = {}  # windows of the callbacks in a checkpoint
        self._shown: dict[str, Any] = {}  # the newest image, video or text of each name
        self._left_out: set[str] = set()  # names of invalid metrics
        self._doubled: set[str] = set()  # names of metrics that two callbacks have
        self._group_updates: Mapping[str, int] = {}  # the trainer's own
        self._spent = Spent()
        self._system = System()

    @property
    def seconds(self) -> float:
        """Seconds of training so far, those before a resume included."""
        return self._before + time.perf_counter() - self._start

    def begin_training(
        self,
        callbacks: Mapping[str, Callback],
        run_dir: Path | None,
        config: Mapping[str, Any] | None = None,
        spent: Spent | None = None,
        group_updates: Mapping[str, int] | None = None,
        loader: Any = None,
    ) -> None:
        self._callbacks, self._loader = callbacks, getattr(loader, "loader", loader)  # of a prefetch
        self._group_updates = group_updates or {}
        for name, state in self._saved.items():
            if name in callbacks:
                callbacks[name].store.windows.load_state_dict(state)
        self._spent = self._spent if spent is None else spent
        self._start = time.perf_counter()
        run = None if run_dir is None else RunDir(run_dir)
        start = {"records": self._records, "axis": self._newest}
        for sink in self._all if run is not None else [sink for sink in self._all if not sink.writes_files]:
            if works(sink, partial(sink.open, run, config or {}, **start)):
                self._sinks.append(sink)
        self.approximate = next((sink.approximate for sink in self._sinks if isinstance(sink, Jsonl)), None)
        self._spent.shares()  # from here on
        self._start = time.perf_counter()

    def hook(self, event: str) -> Hook | None:
        return None if event == "end_batch" and self.axis != "samples" else super().hook(event)

    def end_batch(self, batches: Mapping[str, Batch]) -> None:
        self.samples += sum(map(rows_in, batches.values()))

    def end_cycle(self, update: int, step: int | None = None) -> None:
        if self._open is not None:
            self._write_open(step, update)
        if (update if step is None else step) >= self._due or due_offline(update, self.every, self.offline):
            record, self._pending = self._pending, None
            if record is None or record["updates"] != update:
                record = self._collect(step, update)
            self._last = {name: record[name] for name in ("env_steps", "updates", "seconds")}
            self._due = self._after(record)
            self._add(record)

    def write(self, step: int | None, update: int, metrics: Mapping[str, Any], *, counted: bool = True) -> None:
        """Add these metrics to the record of this update.

        Args:
            step: environment step; None without a collector.
            update: gradient update.
            metrics: by full name.
            counted: False = a resumed run forgets them.

        Raises:
            RlrunError: the metrics file cannot be written.
        """
        record = {**self._counts(step, update), **self._values(metrics)}
        if counted:
            self._add(record)
        else:
            self._uncounted = {**self._uncounted, **record}

    def write_late(self, step: int | None, update: int, metrics: Mapping[str, Any]) -> None:
        """Write a record of these metrics of an earlier update, next to that update's own record."""
        record = {**self._counts(step, update), **self._values(metrics)}
        self._emit(record, self._windows)
        self._records, self._newest = self._records + 1, max(self._newest, axis_of(record, self.offline, self.axis))

    def end_training(self, error: BaseException | None, update: int = 0, step: int | None = None) -> None:
        in_order = error is None or isinstance(error, Stop)
        try:
            self._write_open(step, update)
            if update > self._last["updates"] or (step or 0) > self._last["env_steps"]:
                # A resumed run forgets this record, unless it was due.
                record = self._collect(step, update)
                self._pending = record if axis_of(record) >= self._due else None
                self._uncounted = {**self._uncounted, **record}
            elif self._open is not None:  # the last evaluation came after it was collected
                self._open = {**self._open, **self._spent.shares(again=True)}
            if record := {**self._uncounted, **(self._open or {})}:
                self._emit(record, deepcopy(self._windows))
        except Exception:
            if in_order:
                raise
        finally:
            for sink in reversed(self._sinks):
                works(sink, partial(sink.close, not in_order))

    def _after(self, record: Mapping[str, Any]) -> int:
        return following(record["env_steps"] if self.offline else axis_of(record), self.every)

    def _collect(self, step: int | None, update: int) -> Record:
        with self._spent.during("write"):
            metrics: dict[str, Any] = dict(getattr(self._loader, "metrics", {}))
            for name, callback in self._callbacks.items():
                own = callback.metrics
                for double in metrics.keys() & own.keys() - self._doubled:
                    _messages.warning("metric '%s' of callbacks.%s replaces another one of this name", double, name)
                    self._doubled.add(double)
                metrics.update(own)
            metrics = self._values(metrics)
        counts, last = self._counts(step, update), self._last
        elapsed = max(counts["seconds"] - last["seconds"], 1e-9)
        rates = {"time/updates_per_second": (update - last["updates"]) / elapsed}
        if step is not None:
            rates["time/env_steps_per_second"] = (step - last["env_steps"]) / elapsed
        rates |= {f"updates/{group}": n for group, n in self._group_updates.items() if group != "default"}
        rates |= self._spent.shares() | self._spent.timed() | self._system.metrics()
        return {**counts, **metrics, **rates}

    def _counts(self, step: int | None, update: int) -> Record:
        samples = {"samples": self.samples} if self.axis == "samples" else {}
        return {"env_steps": step or 0, "updates": update, "seconds": self.seconds, **samples}

    def _values(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of metrics for a record, without invalid ones and media that were logged before."""
        media = {name: value for name, value in metrics.items() if isinstance(value, MEDIA)}
        repeated = {name for name, value in media.items() if self._shown.get(name) is value}
        self._shown |= media
        values, faults = as_record({name: value for name, value in metrics.items() if name not in repeated})
        for name in faults.keys() - self._left_out:
            _messages.warning("metric '%s' has %s; it is left out", name, faults[name])
        self._left_out |= faults.keys()
        return values

    def _add(self, record: Record) -> None:
        self._write_open(record["env_steps"], record["updates"])
        self._open = {**(self._open or {}), **record}

    def _write_open(self, step: int | None, update: int) -> None:
        """Write the open record, and count it, unless it is that of this step and update."""
        if self._open is not None and (self._open["env_steps"], self._open["updates"]) != (step or 0, update):
            record, self._open = self._open, None
            self._emit(record, self._windows)
            self._records += 1
            self._newest = axis_of(record, self.offline, self.axis)

    def _emit(self, record: Record, windows: Windows) -> None:
        with self._spent.during("write"):
            record |= windows.read() if windows.take(record) else {}
            numbers = numbers_of(record)
            self._sinks = [
                sink for sink in self._sinks if works(sink, partial(sink.write, record if sink.media else numbers))
            ]

    def note(self, path_of: Callable[[object], str]) -> str:
        return f"every {self.every:,} steps" if self.every else "at the end"

    def state_dict(self) -> dict[str, Any]:
        windows = {name: callback.store.windows.state_dict() for name, callback in self._callbacks.items()}
        further = {
            "samples": self.samples,
            "windows": self._windows.state_dict(),
            "callbacks": self._saved | {name: state for name, state in windows.items() if state},
        }
        return {
            "last": dict(self._last),
            "seconds": self.seconds,
            "pending": self._pending and packed(self._pending),
            "open": self._open and packed(self._open),
            "records": self._records,
            "newest": self._newest,
            **{name: value for name, value in further.items() if value},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._last, self._before = dict(state["last"]), state["seconds"]
        self._records, self._newest = state["records"], state["newest"]
        self._pending, self._open = (
            unpacked(record) if (record := state.get(name)) else None for name in ("pending", "open")
        )  # earlier states have none
        self.samples = state.get("samples", 0)
        self._windows.load_state_dict(state.get("windows", {}))
        self._saved = state.get("callbacks", {})
        for windows in self._saved.values():
            Windows().load_state_dict(windows)  # refuses a damaged state now, before training begins
        for record in filter(None, (self._pending, self._open)):
            axis_of(record, self.offline, self.axis)
        self._due = self._after(self._last)


def works(sink: Sink, call: Callable[[], None]) -> bool:
    """Call a sink; if it raises, warn, and return False: the caller drops it.

    Raises:
        RlrunError: the run cannot go on without this sink.
    """
    try:
        call()
    except RlrunError:
        raise
    except Exception as error:
        name, text = type(sink).__name__.lower(), f"{type(error).__name__}: {error}"
        _messages.warning("logger %s is left out from here on: %s", name, text)
        return False
    return True


def rows_in(batch: Batch) -> int:
    """Return the rows of a batch, each step of a window counted."""
    for name in ("terminated", "discount", "advantage", "valid"):  # one number a row
        if name in batch:
            return int(batch[name].numel())
    return row_count(batch) if batch else 0


class System:
    """Metrics of the process that trains, without its workers.

    Linux and Python's standard library give them, so no package is needed.
    """

    def __init__(self) -> None:
        self._first: float | None = None  # memory at the first reading
        self._read = (time.perf_counter(), time.process_time())

    def metrics(self) -> dict[str, float]:
        """Return memory in MiB, its growth since the first reading, and processor cores in use since the last."""
        memory = memory_in_use() / MIB
        self._first = memory if self._first is None else self._first
        before, self._read = self._read, (time.perf_counter(), time.process_time())
        elapsed, busy = (now - then for now, then in zip(self._read, before, strict=True))
        metrics = {
            "system/memory": memory,
            "system/memory_growth": memory - self._first,
            "system/cpu": busy / max(elapsed, 1e-9),
        }
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            metrics["system/gpu_memory"] = torch.cuda.memory_reserved() / MIB
        return metrics


def memory_in_use() -> int:
    """Return the bytes of main memory that this process uses; on other systems than Linux, the most so far."""
    try:
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

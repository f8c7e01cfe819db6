"""The way of records to one sink, which may fail and come back."""

import json
import logging
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

from rlrun.callbacks.record import Record, axis_of
from rlrun.callbacks.sinks import LONGEST, Sink
from rlrun.core.errors import RlrunError
from rlrun.runs.directory import RunDir

PAUSE = 20.0  # a sink that fails is left alone for as many times as long as the last attempt took
LEAST = 1.0  # and for so many seconds: TensorBoard's files of one second have no order
_messages = logging.getLogger("rlrun")


class Feed:
    """Write records to a sink. Leave it out while it fails, with one warning.

    Later records try it again, for at most a twentieth of the time. It is opened again at the first record that it
    lacks. A sink that writes files gets what it missed from `metrics.jsonl`, where a record holds numbers only.

    Args:
        sink: where records go.
        offline: updates before the first environment step.
        axis: a key of records.

    Attributes:
        records: that the sink has.
        works: whether the newest attempt succeeded.
    """

    def __init__(self, sink: Sink, *, offline: int = 0, axis: str = "env_steps") -> None:
        self.sink, self.offline, self.axis = sink, offline, axis
        self.records = 0
        self.works = True
        self._run: RunDir | None = None
        self._config: Mapping[str, Any] = {}
        self._axis = 0  # of the newest record of the sink
        self._retry = -math.inf  # time of the next attempt
        self._warned = False

    def open(self, run: RunDir | None, config: Mapping[str, Any], records: int, axis: int, missing: int = 0) -> None:
        """Open the sink after so many records, the last at `axis`; it lacks the last `missing` of them."""
        self._run, self._config, self.records, self._axis = run, config, records - missing, axis
        if missing:
            self.works, self._axis = False, max(map(self._place, self._stored(self.records - 1, 1)), default=0)
        else:
            self._attempt(None)

    def write(self, record: Record, records: int) -> None:
        """Write a record, which comes after so many others.

        Raises:
            RlrunError: the run cannot go on without this sink.
        """
        if self.works or time.perf_counter() >= self._retry:
            self._attempt(record, records)

    def retry_now(self) -> None:
        """Let the next record try a sink that failed: it is the last one."""
        self._retry = -math.inf

    @property
    def takes_files(self) -> bool:
        """True if the sink gets files of the run, once all are there."""
        return self.works and getattr(self.sink, "artifacts", False)

    def close(self, error: BaseException | None) -> None:
        """Finish; `error` is the run's failure, or None."""
        try:
            try:
                if error is None and self.takes_files:
                    self.sink.send(self._run)  # type: ignore[attr-defined]
            finally:
                self.sink.close(error)
        except RlrunError:
            raise
        except Exception as failure:
            self._fail(failure, time.perf_counter())

    def _attempt(self, record: Record | None, records: int = 0) -> None:
        """Write a record, after those that are missing; open the sink first if there is none, or if it failed."""
        began, worked = time.perf_counter(), self.works
        try:
            if record is None or not worked:
                self._open()
            if record is not None:
                missed = self._stored(self.records, records - self.records) if self.sink.writes_files else []
                for late in missed:
                    self._write(late)
                self._write(record)
                self.records = records + 1
        except RlrunError:
            raise
        except Exception as error:
            self._fail(error, began)
            return
        self.works = True
        if not worked:
            _messages.warning("logger %s works again", self.name)

    def _open(self) -> None:
        if not self.works:
            with suppress(Exception):  # what is left of it
                self.sink.close(None)
        self.sink.open(self._run, self._config, records=self.records, axis=self._axis)

    def _write(self, record: Record) -> None:
        self.sink.write(record)
        self.records, self._axis = self.records + 1, self._place(record)

    def _fail(self, error: Exception, began: float) -> None:
        now = time.perf_counter()
        self.works, self._retry = False, now + max(PAUSE * (now - began), LEAST)
        if not self._warned:
            self._warned = True
            text = f"{type(error).__name__}: {error}"
            _messages.warning("logger %s failed and is left out until it works again: %s", self.name, text)

    def _stored(self, first: int, count: int) -> list[Record]:
        """Return records of `metrics.jsonl`; what is null there is NaN."""
        if self._run is None or count <= 0 or first < 0:
            return []
        with open(self._run.metrics, "rb") as file:
            lines = list(islice(iter(lambda: file.readline(LONGEST), b""), first, first + count))
        return [
            {name: math.nan if value is None else value for name, value in json.loads(line).items()} for line in lines
        ]

    def _place(self, record: Record) -> int:
        return axis_of(record, self.offline, self.axis)

    @property
    def name(self) -> str:
        """Name of the sink, as a config says it."""
        return type(self.sink).__name__.lower()

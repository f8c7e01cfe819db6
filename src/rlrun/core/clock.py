"""Where the time of a run goes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import ClassVar

KINDS = ("env", "act", "sample", "update", "evaluate", "write")  # kinds of work, each a metric below `time/`


class Spent(dict[str, float]):
    """Seconds that each kind of work took in this process.

    `load` is the loader's time for batches. It contains `env` and `act`; the rest of it is `sample`.

    Attributes:
        current: the one of the run that trains in this process.
        own: name of each block of `timed` -> its calls and their seconds since the last `timed()`.
    """

    current: ClassVar[Spent | None] = None

    def __init__(self) -> None:
        super().__init__()
        self.own: dict[str, list[float]] = {}
        self._begun: tuple[float, dict[str, float]] = (perf_counter(), {})
        self._read = self._begun

    def __missing__(self, work: str) -> float:
        return 0.0

    @contextmanager
    def during(self, work: str) -> Iterator[None]:
        """Count the time of a context as this kind of work."""
        begun = perf_counter()
        try:
            yield
        finally:
            self[work] += perf_counter() - begun

    def shares(self, *, again: bool = False) -> dict[str, float]:
        """Return the share of the time since the last call that each kind of work took, as metrics.

        again: return them since the call before the last one.
        """
        if not again:
            self._begun = self._read
        self._read = perf_counter(), dict(self)
        elapsed, before = max(self._read[0] - self._begun[0], 1e-9), self._begun[1]
        seconds = {work: total - before.get(work, 0.0) for work, total in self.items()}
        if "load" in seconds:
            seconds["sample"] = max(seconds["load"] - seconds.get("env", 0.0) - seconds.get("act", 0.0), 0.0)
        return {f"time/{work}": seconds[work] / elapsed for work in KINDS if work in seconds}

    def timed(self) -> dict[str, float]:
        """Return the mean seconds of each block that users time, since the last call, as metrics."""
        own, self.own = self.own, {}
        return {f"time/{name}_seconds": seconds / calls for name, (calls, seconds) in own.items()}


@contextmanager
def timed(name: str) -> Iterator[None]:
    """Count the time of a context, or of a function as its decorator: `time/NAME_seconds` is its mean in each record.

    It counts in the process that trains; elsewhere, and without a run, it does nothing.
    """
    begun = perf_counter()
    try:
        yield
    finally:
        if (spent := Spent.current) is not None:
            entry = spent.own.setdefault(name, [0, 0.0])
            entry[0] += 1
            entry[1] += perf_counter() - begun


def is_clock(name: str) -> bool:
    """Return True if a metric of this name depends on the clock or the machine, so that no resume repeats it."""
    of_clock = name.startswith(("time/", "system/")) or "/time/" in name  # `/time/`: of a second collector
    return name == "seconds" or name.endswith("_per_second") or of_clock

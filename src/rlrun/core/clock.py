"""Where the time of a run goes."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

KINDS = ("env", "act", "sample", "update", "evaluate", "write")  # of work, each a metric below `time/`


class Spent(dict[str, float]):
    """Seconds that each kind of work took in this process.

    `load` is the loader's time for batches. It contains `env` and `act`; the rest of it is `sample`.
    """

    def __init__(self) -> None:
        super().__init__()
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

        again: since the call before the last.
        """
        if not again:
            self._begun = self._read
        self._read = perf_counter(), dict(self)
        elapsed, before = max(self._read[0] - self._begun[0], 1e-9), self._begun[1]
        seconds = {work: total - before.get(work, 0.0) for work, total in self.items()}
        if "load" in seconds:
            seconds["sample"] = max(seconds["load"] - seconds.get("env", 0.0) - seconds.get("act", 0.0), 0.0)
        return {f"time/{work}": seconds[work] / elapsed for work in KINDS if work in seconds}


def is_clock(name: str) -> bool:
    """Return True if a metric of this name depends on the clock or the machine, so that no resume repeats it."""
    return name == "seconds" or name.endswith("_per_second") or name.startswith(("time/", "system/"))

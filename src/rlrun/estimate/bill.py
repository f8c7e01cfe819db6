"""What a sweep takes: the costs of its jobs, put together."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from rlrun.estimate.model import Cost
from rlrun.estimate.shapes import Shape
from rlrun.files import sized
from rlrun.sweep.expansion import Job

HEADS = ("jobs", "steps/s", "time each", "disk each", "shape")


@dataclass(frozen=True)
class Bill:
    """What jobs take.

    Attributes:
        jobs: in the order in which they are begun.
        shapes: the same jobs, with what one of each takes.
        workers: jobs at a time.
        launch: seconds until the first job begins.
        free: bytes that the disk has.
        price: of an hour of this machine, whatever runs on it, or None.
    """

    jobs: tuple[Job, ...]
    shapes: tuple[tuple[Shape, Cost], ...]
    workers: int
    launch: float
    free: int
    price: float | None = None

    @property
    def seconds(self) -> float:
        """From the command to its end."""
        by_key = {job.key: cost.seconds for shape, cost in self.shapes for job in shape.jobs}
        return self.launch + makespan((by_key[job.key] for job in self.jobs), self.workers)

    @property
    def work(self) -> float:
        """Seconds of all jobs together."""
        return sum(len(shape.jobs) * cost.seconds for shape, cost in self.shapes)

    @property
    def bytes(self) -> int:
        return sum(len(shape.jobs) * cost.bytes for shape, cost in self.shapes)

    def describe(self) -> str:
        """Return a line for each shape, where there are several, and what all of it comes to."""
        lines = table(HEADS, self._rows) if len(self.shapes) > 1 else []
        several = len(self.jobs) > 1
        who = f"; {len(self.jobs)} jobs, {self.workers} at a time, together {duration(self.work)}" if several else ""
        lines.append(f"time   {duration(self.seconds)}{_until(self.seconds)}{who}")
        if any(cost.at_most for _, cost in self.shapes):
            lines.append("       at most: a mean return may end runs before")
        warning = ": NOT ENOUGH" if self.bytes > self.free else ""
        lines.append(f"disk   up to {sized(self.bytes)} of {sized(self.free)} that are free{warning}")
        if self.price is not None:
            lines.append(f"price  {self.price * self.seconds / 3600:.2f}, at {self.price:g} an hour of this machine")
        return "\n".join(lines)

    @property
    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (str(len(shape.jobs)), _rate(cost), duration(cost.seconds), sized(cost.bytes), shape.label)
            for shape, cost in self.shapes
        ]


def makespan(seconds: Iterable[float], workers: int) -> float:
    """Return how long jobs take of which each, in this order, begins as soon as one of the workers is free."""
    free = [0.0] * max(workers, 1)
    for job_seconds in seconds:
        heapq.heapreplace(free, free[0] + job_seconds)
    return max(free)


def duration(seconds: float) -> str:
    """Return seconds in the two largest units that they have: `2 h 5 min`."""
    whole = round(seconds)
    for unit, part, size in (("d", "h", 86_400), ("h", "min", 3_600), ("min", "s", 60)):
        if whole >= size:
            rest = whole % size * {"h": 24, "min": 60, "s": 60}[part] // size
            return f"{whole // size} {unit} {rest} {part}" if rest else f"{whole // size} {unit}"
    return f"{whole} s"


def _until(seconds: float) -> str:
    try:
        return f", until {datetime.now() + timedelta(seconds=seconds):%Y-%m-%d %H:%M}"
    except OverflowError:  # beyond the calendar
        return ""


def _rate(cost: Cost) -> str:
    """Return how many steps (updates, where nothing is collected) a second a run makes."""
    return f"{1 / cost.pace:,.0f}" if cost.pace else ""


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return lines with columns below their heads; the last one is left as wide as it is."""
    every = [heads, *rows]
    widths = [max(map(len, column)) for column in zip(*every, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in every]

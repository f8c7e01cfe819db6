"""The cost of a run and of a sweep: time, disk, and a price if the machine has one."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import fmean

from rlrun.config.expansion import Job
from rlrun.config.overrides import parse
from rlrun.runs.files import aligned, duration, sized

LONGEST = 1e9  # seconds; a later end is beyond the calendar
HEADS = ("jobs", "steps/s", "time each", "disk each", "shape")
# Last parts of keys whose value does not affect the time of a step.
IDLE = frozenset(
    "seed lr discount lambda clip tau per_dim value_weight entropy_weight kl_weight".split()  # noqa: SIM905
)


@dataclass(frozen=True)
class Cost:
    """The cost of a run.

    Attributes:
        seconds: of its process, from start to end.
        bytes: of its folder at the end, at most.
        pace: seconds per step, without evaluations.
        at_most: whether a mean return may end it earlier.
        probed: seconds of training in the probe; other time of its process counts in full.
    """

    seconds: float
    bytes: int
    pace: float = 0.0
    at_most: bool = False
    probed: float = 0.0

    @classmethod
    def mean(cls, costs: Sequence[Cost]) -> Cost:
        """Return the mean of at least one."""
        return cls(
            fmean(cost.seconds for cost in costs),
            round(fmean(cost.bytes for cost in costs)),
            fmean(cost.pace for cost in costs),
            any(cost.at_most for cost in costs),
        )


@dataclass(frozen=True)
class Shape:
    """Jobs of equal cost.

    Attributes:
        label: the overrides that not all shapes have.
        jobs: in the order of the sweep.
    """

    label: str
    jobs: tuple[Job, ...]


def shapes(jobs: Iterable[Job]) -> list[Shape]:
    """Group jobs of equal cost: their overrides differ only in numbers that do not affect it."""
    groups: dict[tuple[str, ...], list[Job]] = {}
    for job in jobs:
        overrides = (
            override.text
            for override in parse(job.overrides)
            if override.key.rpartition(".")[2] not in IDLE or type(override.value) not in (int, float)
        )
        groups.setdefault(tuple(sorted(overrides)), []).append(job)
    common = set.intersection(*map(set, groups)) if groups else set()
    return [
        Shape(" ".join(override for override in overrides if override not in common), (*group,))
        for overrides, group in groups.items()
    ]


@dataclass(frozen=True)
class CostEstimate:
    """The cost of all jobs.

    Attributes:
        jobs: in the order in which they start.
        shapes: the same jobs, with the cost of one of each.
        workers: jobs at a time.
        launch: seconds until the first job begins.
        free: bytes that the disk has.
        hourly_price: of an hour of this machine, whatever runs on it, or None.
    """

    jobs: tuple[Job, ...]
    shapes: tuple[tuple[Shape, Cost], ...]
    workers: int
    launch: float
    free: int
    hourly_price: float | None = None

    @property
    def seconds(self) -> float:
        """From the command to its end: each job begins as soon as a worker is free."""
        by_key = {job.key: cost.seconds for shape, cost in self.shapes for job in shape.jobs}
        free = [0.0] * self.workers
        for job in self.jobs:
            heapq.heapreplace(free, free[0] + by_key[job.key])
        return self.launch + max(free)

    @property
    def bytes(self) -> int:
        return sum(len(shape.jobs) * cost.bytes for shape, cost in self.shapes)

    def describe(self) -> str:
        """Return a line for each shape, if there are several, and the totals."""
        rows = [
            (str(len(shape.jobs)), f"{1 / cost.pace:,.0f}", duration(cost.seconds), sized(cost.bytes), shape.label)
            for shape, cost in self.shapes
        ]
        lines = aligned([HEADS, *rows], left=HEADS) if len(rows) > 1 else []
        work = sum(len(shape.jobs) * cost.seconds for shape, cost in self.shapes)
        end = f"{datetime.now() + timedelta(seconds=min(self.seconds, LONGEST)):%Y-%m-%d %H:%M}"
        parallel = f"; {len(self.jobs)} jobs, {self.workers} at a time, together {duration(work)}"
        lines.append(f"time   {duration(self.seconds)}, until {end}{parallel if len(self.jobs) > 1 else ''}")
        if any(cost.at_most for _, cost in self.shapes):
            lines.append("       at most: a mean return may end runs before")
        warning = ": NOT ENOUGH" if self.bytes > self.free else ""
        lines.append(f"disk   up to {sized(self.bytes)} of {sized(self.free)} that are free{warning}")
        if self.hourly_price is not None:
            price = self.hourly_price * self.seconds / 3600
            lines.append(f"price  {price:.2f}, at {self.hourly_price:g} an hour of this machine")
        return "\n".join(lines)

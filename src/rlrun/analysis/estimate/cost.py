"""From what a probe measured to what a run takes, and from runs to a sweep: time, disk, and a price where one is given.

A probe is the beginning of a run. Its clock is the *axis*: environment steps, or updates where nothing is
collected. What it took until then is known; the rest of the way goes at the pace of the newest half of the probe, with
an evaluation whenever one is due. How long the episodes of those will be nobody knows: halfway between the newest ones
and the time limit of the environment is what counts, or the newest ones where there is no limit.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from statistics import fmean

from rlrun.commands.ls import ls
from rlrun.config.expansion import Job
from rlrun.config.overrides import parse
from rlrun.core.errors import ConfigError
from rlrun.runs.files import aligned, sized

HEADS = ("jobs", "steps/s", "time each", "disk each", "shape")
PLACES = ("runs", "sweeps")
NEWEST = 5  # runs of a shape
# Last parts of keys whose number changes what is learned, not what a step takes.
IDLE = frozenset(
    "seed lr discount lambda clip tau per_dim value_weight entropy_weight kl_weight".split()  # noqa: SIM905
)


@dataclass(frozen=True)
class Measured:
    """What a probe measured; times are seconds, sizes bytes.

    Attributes:
        axis: where it ended.
        complete: whether the whole run was over by then.
        loop: training, with its evaluations, without the one at its end.
        last: that one; 0 where there was none.
        around: whatever else its process took, from its start to its end.
        pace: a unit of the axis, without evaluations, in the newest half of the probe.
        end: of the run, on the axis; None = no limit.
        seconds: limit of training, or None.
        may_end: whether a mean return may end it before.
        skipped: units of the warm-up that were left out, at `skipped_pace` each.
        evaluate_every: on the axis; 0 = never.
        newest: an evaluation like the newest one.
        longest: one whose episodes last as long as the environment lets them, or None where that is unknown.
        save_every: on the axis; 0 = at the end only.
        save_seconds: between two checkpoints, or None.
        keep: of the newest checkpoints; None = all.
        keep_best: of those that were the best.
        state: a checkpoint without the rows of memories.
        rows: of memories on disk, of so many there were (`stored`) and at most can be (`capacity`); they do not grow
            where nothing is collected.
        records: metrics, and whatever else grows with the run.
        fixed: config, manifest and the like.
    """

    axis: int
    complete: bool
    loop: float
    last: float
    around: float
    pace: float
    end: float | None
    seconds: float | None
    may_end: bool
    skipped: int
    skipped_pace: float
    evaluate_every: int
    newest: float
    longest: float | None
    save_every: int
    save_seconds: float | None
    keep: int | None
    keep_best: int
    state: int
    rows: int
    stored: int
    capacity: int
    grows: bool
    records: int
    fixed: int


@dataclass(frozen=True)
class Cost:
    """What a run takes.

    Attributes:
        seconds: of its process, from start to end.
        bytes: of its folder in the end.
        pace: seconds a unit of the axis while it learns, evaluations left out; None where that is not known.
        at_most: whether it may take less, as a mean return ends it.
    """

    seconds: float
    bytes: int
    pace: float | None = None
    at_most: bool = False

    @classmethod
    def mean(cls, costs: list[Cost]) -> Cost:
        """Return the mean of some, of at least one."""
        paces = [cost.pace for cost in costs if cost.pace is not None]
        return cls(
            fmean(cost.seconds for cost in costs),
            round(fmean(cost.bytes for cost in costs)),
            fmean(paces) if paces else None,
            any(cost.at_most for cost in costs),
        )


def cost_of(probe: Measured) -> Cost:
    """Return what a run costs of which a probe was made; infinite where nothing ends it."""
    end, loop = _way(probe)
    last = probe.last
    if not probe.complete:  # the last one may fall together with one that is due
        last = _evaluation(probe) if probe.evaluate_every and end % probe.evaluate_every else 0.0
    size = _disk(probe, end, loop) if math.isfinite(loop) else 0
    return Cost(probe.around + loop + last, size, probe.pace, probe.may_end)


def due(begin: float, end: float, every: int) -> int:
    """Return how often something is due behind `begin`, up to and with `end`."""
    return math.floor(end / every) - math.floor(begin / every) if every and end > begin else 0


def _evaluation(probe: Measured) -> float:
    """Return what an evaluation takes that is still to come."""
    return probe.newest if probe.longest is None else (probe.newest + max(probe.longest, probe.newest)) / 2


def _way(probe: Measured) -> tuple[float, float]:
    """Return where the run ends on the axis, and the seconds of training until then."""
    if probe.complete:
        return probe.axis, probe.loop
    begin = probe.axis + probe.skipped
    before = probe.loop + probe.skipped * probe.skipped_pace
    end = math.inf if probe.end is None else max(probe.end, begin)
    often = 1 / probe.evaluate_every if probe.evaluate_every else 0.0
    if probe.seconds is not None:
        share = probe.pace + often * _evaluation(probe)  # seconds a unit, evaluations spread out
        end = min(end, max(begin, begin + (probe.seconds - before) / share))
    if math.isinf(end):
        return end, end
    count = due(begin, end, probe.evaluate_every)
    return math.ceil(end), before + (end - begin) * probe.pace + count * _evaluation(probe)


def _disk(probe: Measured, end: float, loop: float) -> int:
    """Return the bytes of the run's folder in the end; the most that they can be, where it depends."""
    evaluations = due(0, end, probe.evaluate_every) + bool(probe.evaluate_every)
    saves = 1 + due(0, end, probe.save_every) + (evaluations if probe.keep_best else 0)
    saves += math.floor(loop / probe.save_seconds) if probe.save_seconds else 0
    checkpoints = saves if probe.keep is None else min(saves, probe.keep + min(probe.keep_best, evaluations))
    rows, written = float(probe.stored), float(probe.stored)
    if probe.grows:
        written = probe.stored + end - probe.axis
        rows = min(written, probe.capacity)
    overwritten = 2 if written > rows else 1  # rows that count no more are on disk as well, at most as many
    segments = probe.rows * overwritten * rows / probe.stored if probe.stored else 0.0
    return round(probe.fixed + probe.records * end / max(probe.axis, 1) + checkpoints * probe.state + segments)


@dataclass(frozen=True)
class Shape:
    """Jobs that cost the same.

    Attributes:
        overrides: the overrides that they have in common, without those that cost nothing.
        label: of these the ones that not all shapes have.
        jobs: in the order of the sweep.
    """

    overrides: tuple[str, ...]
    label: str
    jobs: tuple[Job, ...]


def shape_of(overrides: Iterable[str]) -> tuple[str, ...]:
    """Return the overrides that tell what a run costs, in an order of their own.

    Two runs of different overrides may cost the same; two of the same do, as long as conf/ stays as it is.
    """
    kept = (
        override.text
        for override in parse(overrides)
        if override.key.rpartition(".")[2] not in IDLE or type(override.value) not in (int, float)
    )
    return tuple(sorted(kept))


def shapes(jobs: Iterable[Job]) -> list[Shape]:
    """Return jobs by what they cost, in the order in which they come."""
    kinds: dict[tuple[str, ...], list[Job]] = {}
    for job in jobs:
        kinds.setdefault(shape_of(job.overrides), []).append(job)
    common = set.intersection(*map(set, kinds)) if kinds else set()
    return [
        Shape(overrides, " ".join(override for override in overrides if override not in common), (*of,))
        for overrides, of in kinds.items()
    ]


def differing(jobs: Sequence[Job]) -> tuple[list[str], list[list[str]]]:
    """Return the keys whose overrides are not the same in all jobs, and the value of each job for each of them."""
    rows = [{override.key: override.text for override in parse(job.overrides)} for job in jobs]
    keys = [key for key in dict.fromkeys(key for row in rows for key in row) if len({row.get(key) for row in rows}) > 1]
    texts = [[row.get(key, "") for key in keys] for row in rows]
    return keys, [[text.partition("=")[2] if "=" in text else text for text in row] for row in texts]


def known_costs(shapes: Sequence[Shape], places: Iterable[Path | str] = PLACES) -> list[Cost | None]:
    """Return for each shape the mean of the newest completed runs with the same overrides, or None without such runs.

    Nothing of what is read is executed.

    places: folders beneath which to look; those that do not exist have none.
    """
    wanted = {shape.overrides: list[Cost]() for shape in shapes}
    runs = [run for place in map(Path, places) if place.is_dir() for run in ls(place, status="completed")]
    for run in sorted(runs, key=lambda run: run["created"] or "", reverse=True):
        with suppress(ConfigError):  # a file of overrides that nobody typed
            costs = wanted.get(shape_of(run["overrides"]))
            seconds = math.nan if run["seconds"] is None else float(run["seconds"])
            if costs is not None and len(costs) < NEWEST and math.isfinite(seconds):
                costs.append(Cost(seconds, size_of(Path(run["path"]))))
    return [Cost.mean(costs) if (costs := wanted[shape.overrides]) else None for shape in shapes]


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder; 0 where there is none."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.lstat().st_size for file in files if file.is_file())


@dataclass(frozen=True)
class CostEstimate:
    """What jobs take.

    Attributes:
        jobs: in the order in which they are begun.
        shapes: the same jobs, with what one of each takes.
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
        lines = aligned([HEADS, *self._rows], left=HEADS) if len(self.shapes) > 1 else []
        several = len(self.jobs) > 1
        who = f"; {len(self.jobs)} jobs, {self.workers} at a time, together {duration(self.work)}" if several else ""
        lines.append(f"time   {duration(self.seconds)}{_until(self.seconds)}{who}")
        if any(cost.at_most for _, cost in self.shapes):
            lines.append("       at most: a mean return may end runs before")
        warning = ": NOT ENOUGH" if self.bytes > self.free else ""
        lines.append(f"disk   up to {sized(self.bytes)} of {sized(self.free)} that are free{warning}")
        if self.hourly_price is not None:
            price = self.hourly_price * self.seconds / 3600
            lines.append(f"price  {price:.2f}, at {self.hourly_price:g} an hour of this machine")
        return "\n".join(lines)

    @property
    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (
                str(len(shape.jobs)),
                f"{1 / cost.pace:,.0f}" if cost.pace else "",
                duration(cost.seconds),
                sized(cost.bytes),
                shape.label,
            )
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

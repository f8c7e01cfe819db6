"""From what a probe found to the time and the disk of the whole run.

The probe is the beginning of the run. Its clock is the *axis*: environment steps, or updates where nothing is
collected. What it took until then is known; the rest of the way goes at the pace of the newest half of the probe, with
an evaluation whenever one is due. How long the episodes of those will be nobody knows: halfway between the newest ones
and the time limit of the environment is what counts, or the newest ones where there is no limit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Measured:
    """What a probe found; times are seconds, sizes bytes.

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
        rows: of memories on disk, of so many there were (`held`) and at most can be (`room`); they do not grow where
            nothing is collected.
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
    held: int
    room: int
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
            sum(cost.seconds for cost in costs) / len(costs),
            round(sum(cost.bytes for cost in costs) / len(costs)),
            sum(paces) / len(paces) if paces else None,
            any(cost.at_most for cost in costs),
        )


def cost_of(probe: Measured) -> Cost:
    """Return what a run costs of which a probe was made; infinite where nothing ends it."""
    end, loop = _way(probe)
    ends_on_one = probe.evaluate_every and end % probe.evaluate_every == 0
    last = probe.last if probe.complete else _evaluation(probe) * (probe.evaluate_every > 0 and not ends_on_one)
    seconds = probe.loop + last if probe.complete else loop + last
    size = _disk(probe, end, loop) if math.isfinite(seconds) else 0
    return Cost(probe.around + seconds, size, probe.pace, probe.may_end)


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
    rows, written = float(probe.held), float(probe.held)
    if probe.grows:
        written = probe.held + end - probe.axis
        rows = min(written, probe.room)
    overwritten = 2 if written > rows else 1  # rows that count no more are on disk as well, at most as many
    segments = probe.rows * overwritten * rows / probe.held if probe.held else 0.0
    return round(probe.fixed + probe.records * end / max(probe.axis, 1) + checkpoints * probe.state + segments)

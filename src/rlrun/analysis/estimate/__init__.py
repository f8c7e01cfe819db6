"""Estimate the cost of runs: the first seconds of jobs are run, with the parallelism of the sweep."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import NamedTuple

from rlrun.analysis.estimate.cost import Cost, CostEstimate, Shape, shapes
from rlrun.config.expansion import Job
from rlrun.core.errors import RequestError, RlrunError, RunDirError
from rlrun.runs.files import counted, read_json, reason
from rlrun.runs.progress import last_line
from rlrun.sweep import children
from rlrun.sweep.local import room, share

PROBE = 15.0  # seconds
PAUSE = 0.02  # seconds between two polls of the probes
PATIENCE = 10.0  # seconds that a probe has to stop after a signal


def estimate(
    jobs: Sequence[Job],
    *,
    folder: Path | None = None,
    config_dir: Path | None = None,
    workers: int | None = None,
    seconds: float = PROBE,
    hourly_price: float | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> CostEstimate:
    """Return the cost of jobs on this machine, by running one of each shape for some seconds.

    As many run at once as in the sweep, because they slow each other down. No file is kept.

    Args:
        jobs: of `rlrun.config.expansion.expand`.
        folder: where the runs will go; the disk of the current folder, unless given.
        config_dir: the user's own conf folder.
        workers: jobs at a time; None = as many as there are cores.
        seconds: of each probe, from its first update on.
        hourly_price: of an hour of this machine.
        report: called with a line about the probes before they start.

    Raises:
        RequestError: a job cannot be started, or nothing would end it; the message names it.
        RlrunError: one fails.
    """
    count = min(workers or room(jobs), len(jobs))
    groups = shapes(jobs)
    turns = -(-len(groups) // count)
    at_once = f", {count} at a time" if count > 1 else ""
    report(
        f"probing {counted(len(groups), 'shape')} of run for {seconds:g} s each{at_once}: {turns * seconds:.0f} s or so"
    )
    target = (folder or Path.cwd()).absolute()
    home = next(path for path in (target, *target.parents) if path.is_dir())  # the nearest one that exists
    try:
        temporary = tempfile.TemporaryDirectory(prefix=".estimate-", dir=home, ignore_cleanup_errors=True)
    except OSError as error:
        raise RunDirError(f"{home} is not writable: {reason(error)}") from error
    measured: list[list[Cost]] = [[] for _ in groups]
    with temporary as name:
        scratch = Path(name)
        start = time.perf_counter()
        children.start(ready, log=scratch / "ready.txt").wait()
        launch = time.perf_counter() - start  # until the first job's process has started and imported everything
        for batch in _batches(groups, turns, count):
            costs = _probe([job for _, job in batch], config_dir, seconds, scratch)
            for (number, _), cost in zip(batch, costs, strict=True):
                measured[number].append(cost)
    means = [Cost.mean(costs) for costs in measured]
    free = shutil.disk_usage(home).free
    return CostEstimate(tuple(jobs), tuple(zip(groups, means, strict=True)), count, launch, free, hourly_price)


def begin(overrides: tuple[str, ...], config_dir: Path | None, seconds: float, folder: Path) -> int:
    """Run a probe; return the exit code of its process. Only that process imports torch."""
    from rlrun.analysis.estimate.probe import carry_out

    return carry_out(overrides, config_dir, seconds, folder)


def ready() -> int:
    """Do nothing, in a process like that of a job."""
    return 0


def _batches(groups: Sequence[Shape], turns: int, count: int) -> Iterator[list[tuple[int, Job]]]:
    """Yield `turns` batches of `count` jobs with the indices of their shapes; shapes alternate.

    If there are fewer shapes than workers, shapes are probed more than once, so that every worker is busy.
    """
    cycles = [cycle(shape.jobs) for shape in groups]
    numbers = cycle(range(len(groups)))
    for _ in range(turns):
        yield [(number, next(cycles[number])) for number in islice(numbers, count)]


def _probe(jobs: Sequence[Job], config_dir: Path | None, seconds: float, scratch: Path) -> list[Cost]:
    """Return the cost of each job; all are probed at once, and accelerators are shared out.

    Raises:
        RlrunError: a probe failed.
    """
    probes: list[_Probe] = []
    try:
        for slot, job in enumerate(jobs):
            folder, begun = Path(tempfile.mkdtemp(dir=scratch)), time.perf_counter()
            arguments, log = (job.overrides, config_dir, seconds, folder), folder / "log.txt"
            child = children.start(begin, *arguments, log=log, variables=share(slot))
            probes.append(_Probe(job, folder, child, begun))
        costs: dict[int, Cost] = {}
        while len(costs) < len(probes):
            time.sleep(PAUSE)
            for index, probe in enumerate(probes):
                if index not in costs and probe.child.poll() is not None:
                    costs[index] = probe.cost()
        return [costs[index] for index in range(len(probes))]
    finally:
        for probe in probes:
            _stop(probe.child)


def _stop(child: children.Child) -> None:
    if child.poll() is None:
        child.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.wait(PATIENCE)
            return
        child.kill()
        child.wait()


class _Probe(NamedTuple):
    """The process of a probe, its job, its folder, and its start time."""

    job: Job
    folder: Path
    child: children.Child
    begun: float

    def cost(self) -> Cost:
        """Return the cost of the run, with its process's time before and after training.

        Raises:
            RlrunError: the process failed.
        """
        elapsed = time.perf_counter() - self.begun
        if code := self.child.poll():
            kind = RequestError if code == RequestError.exit_code else RlrunError
            why = last_line(self.folder / "log.txt") or f"its process ended with {code}"
            raise kind(f"{self.job.label}: {why}" if self.job.label else why)
        cost = Cost(**read_json(self.folder / "probe.json"))
        return replace(cost, seconds=cost.seconds + max(elapsed - cost.probed, 0.0))

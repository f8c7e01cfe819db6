"""Run the beginnings of jobs, as many at a time as there will be workers."""

from __future__ import annotations

import math
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from pathlib import Path

from rlrun.errors import RequestError, RlrunError, RunDirError
from rlrun.estimate.bill import Bill
from rlrun.estimate.model import Cost, Measured, cost_of
from rlrun.estimate.shapes import Shape, shapes
from rlrun.files import counted, read_json, reason
from rlrun.sweep import children
from rlrun.sweep.expansion import Job
from rlrun.sweep.local import room, share
from rlrun.watching import last_line

PROBE = 15.0  # seconds
PAUSE = 0.02  # seconds between two looks at the probes
PATIENCE = 10.0  # seconds that a probe has to leave when it is asked to


@dataclass
class _Probe:
    """A probe at work: of which shape, of which job, where, and how long its process took."""

    number: int
    job: Job
    folder: Path
    begun: float = field(default_factory=time.perf_counter)
    took: float | None = None
    child: children.Child | None = None

    @property
    def log(self) -> Path:
        return self.folder / "log.txt"

    def start(self, config_dir: Path | None, seconds: float, place: int) -> None:
        """Begin, on one of the accelerators where there are any."""
        self.begun = time.perf_counter()
        arguments = (self.job.words, config_dir, seconds, self.folder)
        self.child = children.start(begin, *arguments, log=self.log, variables=share(place))

    def look(self) -> bool:
        """Return whether it has ended.

        Raises:
            RlrunError: it failed.
        """
        if self.took is None and self.child is not None and self.child.poll() is not None:
            self.took = time.perf_counter() - self.begun
            self._require(self.child.wait())
        return self.took is not None

    def _require(self, code: int) -> None:
        if code:
            kind = RequestError if code == RequestError.exit_code else RlrunError
            why = last_line(self.log) or f"its process ended with {code}"
            raise kind(f"{self.job.label}: {why}" if self.job.label else why)

    def leave(self) -> None:
        """End it, if it has not ended."""
        if self.child is None or self.child.poll() is not None:
            return
        self.child.terminate()
        try:
            self.child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()

    def found(self) -> Measured:
        """Return what it found, with what its process took around training."""
        measured = Measured(**read_json(self.folder / "probe.json"))
        return replace(measured, around=max((self.took or 0.0) - measured.loop - measured.last, 0.0))


def estimate(
    jobs: Sequence[Job],
    *,
    folder: Path | None = None,
    config_dir: Path | None = None,
    workers: int | None = None,
    seconds: float = PROBE,
    price: float | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> Bill:
    """Return what jobs take on this machine, by running one of each shape for some seconds.

    As many run at once as will, for they slow each other down. Nothing of it stays on disk.

    Args:
        jobs: of `rlrun.sweep.expand`.
        folder: where the runs will go; the disk of the folder in which the user stands, unless given.
        config_dir: the user's own conf folder.
        workers: jobs at a time; None = as many as there are cores.
        seconds: of each probe, from its first update on.
        price: of an hour of this machine.
        tell: called with what is going to be done.

    Raises:
        RequestError: a job cannot be begun, or nothing would end it; the message names it.
        RlrunError: one fails.
    """
    count = min(workers or room(jobs), len(jobs))
    groups = shapes(jobs)
    turns = -(-len(groups) // count)
    at_once = f", {count} at a time" if count > 1 else ""
    tell(
        f"probing {counted(len(groups), 'shape')} of run for {seconds:g} s each{at_once}: {turns * seconds:.0f} s or so"
    )
    home = _existing(folder or Path.cwd())
    with _scratch(home) as scratch:
        launch = _launch(scratch)
        measured: list[list[Measured]] = [[] for _ in groups]
        for batch in _batches(groups, turns, count):
            probes = [_Probe(number, job, Path(tempfile.mkdtemp(dir=scratch))) for number, job in batch]
            _carry_out(probes, config_dir, seconds)
            for probe in probes:
                measured[probe.number].append(probe.found())
    costs = [Cost.mean([cost_of(sample) for sample in of]) for of in measured]
    for shape, cost in zip(groups, costs, strict=True):
        if math.isinf(cost.seconds):
            raise RequestError(f"{_named(shape)}no limit of steps, updates or seconds ends this run: stop.env_steps=…")
    free = shutil.disk_usage(home).free
    return Bill(tuple(jobs), tuple(zip(groups, costs, strict=True)), count, launch, free, price)


def begin(words: tuple[str, ...], config_dir: Path | None, seconds: float, folder: Path) -> int:
    """Do a probe; return the exit code of its process. Only there torch is imported."""
    from rlrun.estimate.probe import carry_out

    return carry_out(words, config_dir, seconds, folder)


def ready() -> int:
    """Do nothing, in a process like that of a job."""
    return 0


def _batches(groups: Sequence[Shape], turns: int, count: int) -> Iterator[list[tuple[int, Job]]]:
    """Return so many batches of `count` jobs with the numbers of their shapes, all shapes by turns.

    So that as many are at work as will be, shapes are probed more than once where it takes that.
    """
    cycles = [cycle(shape.jobs) for shape in groups]
    numbers = cycle(range(len(groups)))
    for _ in range(turns):
        yield [(number, next(cycles[number])) for number in islice(numbers, count)]


def _launch(scratch: Path) -> float:
    """Return the seconds until the first process of a job is there, which imports everything."""
    begun = time.perf_counter()
    children.start(ready, log=scratch / "ready.txt").wait()
    return time.perf_counter() - begun


def _carry_out(probes: Sequence[_Probe], config_dir: Path | None, seconds: float) -> None:
    """Let probes work, all at once, until the last one has ended."""
    try:
        for place, probe in enumerate(probes):
            probe.start(config_dir, seconds, place)
        while sum(probe.look() for probe in probes) < len(probes):
            time.sleep(PAUSE)
    finally:
        for probe in probes:
            probe.leave()


@contextmanager
def _scratch(home: Path) -> Iterator[Path]:
    """Return a folder that is gone afterwards."""
    try:
        scratch = Path(tempfile.mkdtemp(prefix=".estimate-", dir=home))
    except OSError as error:
        raise RunDirError(f"{home} is not writable: {reason(error)}") from error
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _existing(folder: Path) -> Path:
    """Return a folder, or the nearest one above it that exists."""
    place = folder.absolute()
    return next(path for path in (place, *place.parents) if path.is_dir())


def _named(shape: Shape) -> str:
    return f"{shape.label}: " if shape.label else ""

"""Learners: the processes that make one run together, each with its share of the envs and of every batch.

Each holds all networks. What is computed over a batch and has a part in training is made of all shares, by the
functions here; so every learner takes the same step, which is that of one process on the whole batch. They are called
by all learners in the same order, and in a process that learns alone they do nothing.

Gradients are averaged by `torch.distributed.all_reduce`, not by its DistributedDataParallel. That wraps a module's
`forward`, whereas a loss here calls other methods of networks (`act`, `heads`, …). It sends gradients while others are
computed, which does not pay for small networks.

The first learner starts the others, receives their state, and ends them.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from multiprocessing import Pipe
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

from rlrun.core.errors import LearnerError
from rlrun.runs import processes

if TYPE_CHECKING:  # commands that look at checkpoints only do without torch
    from torch import Tensor, nn

T = TypeVar("T")

PATIENCE = timedelta(days=7)  # one evaluates, the others wait; one that is gone is noticed at once all the same
PAUSE = timedelta(seconds=1)  # of waiting: python handles signals only between calls, and another learner may be stuck
READY = "ready"  # what a learner says when all its parts are built; anything else is why and where it failed
AFTER = 3  # exit code of one that left because another one was gone
GRACE = 10.0  # seconds that learners have to leave
POLL = 0.05

_rank, _count = 0, 1
_cause: Callable[[], LearnerError] | None = None  # asked why another one is gone


def place_of(checkpoints: Path, number: int) -> Path:
    """Return the folder in which a learner, from 0, has its checkpoints: the first one where every run has them."""
    return checkpoints / f"learner-{number}" if number else checkpoints


def places_in(checkpoints: Path) -> list[Path]:
    """Return the folders of all learners, the first one's first."""
    return [checkpoints, *sorted(path for path in checkpoints.glob("learner-*") if not path.is_symlink())]


def rank() -> int:
    """Return the number of this learner, from 0: the first one writes the run's files."""
    return _rank


def count() -> int:
    """Return how many learners there are."""
    return _count


def be(number: int) -> None:
    """Make this process the learner of this number, before any part is built."""
    global _rank
    _rank = number


@contextmanager
def joined(place: Path, learners: int, backend: str, cause: Callable[[], LearnerError] | None = None) -> Iterator[None]:
    """Learn together for as long as a `with` block lasts.

    Args:
        place: a file by which the learners find each other.
        learners: how many.
        backend: of torch.distributed.
        cause: asked why another one is gone.
    """
    global _count, _cause
    import torch.distributed as dist

    _cause = cause
    try:
        _call(_begin, backend, place, learners)
        _count = learners
        yield
    finally:
        _count, _cause = 1, None
        if dist.is_initialized():
            dist.destroy_process_group()


def _begin(backend: str, place: Path, learners: int) -> None:
    import torch.distributed as dist

    store = dist.FileStore(str(place), learners)  # type: ignore[attr-defined]
    try:
        dist.init_process_group(backend, store=store, rank=_rank, world_size=learners, timeout=PATIENCE)
    except BaseException:
        # torch numbers groups, and counts those that never came to be until one is destroyed; learners look for each
        # other under that number, so that the next ones would wait for ever where one of them has failed before.
        if not dist.is_initialized():  # it is, where a signal comes, or torch meets again, at its end
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
        dist.destroy_process_group()
        raise


def _call(function: Callable[..., Any], *args: Any) -> Any:
    """Call what all learners call.

    Raises:
        LearnerError: another one is gone.
    """
    try:
        return function(*args)
    except RuntimeError as error:  # of the connection
        raise LearnerError("another learner is gone") if _cause is None else _cause() from error


def _send(function: Callable[..., Any], value: Tensor, *args: Any) -> Tensor:
    """Exchange a tensor in place by what all learners call."""
    if value.is_cuda:  # which is not waited for here
        _call(function, value, *args)
    else:
        _call(_wait, _call(partial(function, async_op=True), value, *args))
    return value


def _wait(work: Any) -> None:
    """Wait until a message has come."""
    while True:
        try:
            work.wait(PAUSE)
            return
        except RuntimeError:  # of a pause, or of the connection
            if work.is_completed():
                work.wait()
                return


def sum_(value: Tensor) -> Tensor:
    """Add up the tensors of all learners, in place."""
    if _count > 1:
        import torch.distributed as dist

        _send(dist.all_reduce, value)
    return value


def mean_(value: Tensor) -> Tensor:
    """Average the tensors of all learners, in place."""
    return sum_(value).div_(_count) if _count > 1 else value


def pooled_(total: Tensor, number: int) -> int:
    """Add up sums over elements, in place; return of how many elements they are now, given how many there are here."""
    if _count == 1:
        return number
    import torch

    both = sum_(torch.cat([total.flatten(), total.new_tensor([float(number)])]))
    total.copy_(both[:-1].view_as(total))
    return int(both[-1])


def first_(value: Tensor, learner: int = 0) -> Tensor:
    """Let every learner have the tensor of the first one, or of another one, in place."""
    if _count > 1:
        import torch.distributed as dist

        _send(dist.broadcast, value, learner)
    return value


def to_number(number: int) -> int:
    """Return the number that the first learner has: what is asked for in each update goes in one message."""
    if _count == 1:
        return number
    import torch

    return int(first_(torch.tensor(number)))


def broadcast(value: T, learner: int = 0) -> T:
    """Return what the first learner has, or another one, whatever it is."""
    if _count == 1:
        return value
    import torch

    data = bytearray(pickle.dumps(value) if learner == _rank else b"")
    size = int(first_(torch.tensor(len(data)), learner))
    buffer = torch.frombuffer(data or bytearray(size), dtype=torch.uint8)
    received: T = pickle.loads(first_(buffer, learner).numpy().tobytes())
    return received


def every(flag: bool) -> bool:
    """Return True if something holds for all learners."""
    return all(gathered(flag))


def gathered(value: T) -> list[T]:
    """Return what each learner has, in their order."""
    return [broadcast(value, learner) for learner in range(_count)]


def require_same(modules: Mapping[str, nn.Module]) -> None:
    """Refuse to continue where learners' networks differ: something would decide by its own share of a batch.

    Raises:
        LearnerError: naming the first one.
    """
    sums = {
        path: [float(tensor.detach().double().sum()) for tensor in (*module.parameters(), *module.buffers())]
        for path, module in modules.items()
    }
    first = broadcast(sums)
    differs = [path for path, numbers in sums.items() if repr(numbers) != repr(first.get(path))]
    if unequal := [path for paths in gathered(differs) for path in paths]:
        raise LearnerError(f"learners={_count}: {unequal[0]} is not the same in all of them")


@dataclass(frozen=True)
class LearnerJob:
    """What another learner needs to know.

    Attributes:
        number: of the learner, from 1.
        count: of all learners.
        place: a file by which they find each other.
        backend: of torch.distributed.
        composed: what the run is made of.
        run: the run directory.
        checkpoint: name of the one to resume from, or None.
        token: by which the first learner, and all others with it, owns the run.
    """

    number: int
    count: int
    place: Path
    backend: str
    composed: Any
    run: Path
    checkpoint: str | None
    token: str | None = None


class Member:
    """One of the other learners, as the first one knows it."""

    def __init__(self, job: LearnerJob) -> None:
        self.number = job.number
        self.failure: tuple[str, str] | None = None  # in a line, and by a traceback
        self._connection, theirs = Pipe()
        self._process = processes.start("rlrun.commands.follow_learner", theirs)
        theirs.close()
        self._connection.send_bytes(pickle.dumps(job, protocol=5))

    def is_ready(self) -> bool:
        """Return True if it is ready to join.

        Raises:
            LearnerError: it failed.
        """
        with suppress(EOFError, OSError):
            if not self._connection.poll(POLL):
                return False
            message = self._connection.recv()
            if message == READY:
                return True
            self.failure = message
        raise self.error()

    def lost(self) -> bool:
        """Return True if it is gone by itself, or about to go."""
        with suppress(EOFError, OSError):
            if self._connection.poll(0.0):
                self.failure = self._connection.recv()
        return self.failure is not None or self._process.poll() not in (None, AFTER)

    def error(self) -> LearnerError:
        """Return why it is gone, and in the log of the run where it failed."""
        if self.failure is None:
            return LearnerError(f"learner {self.number} is gone: {processes.end_of(self._process)}")
        line, where = self.failure
        error = LearnerError(f"learner {self.number} failed: {line}")
        error.add_note(f"In learner {self.number}:\n{where}")
        return error

    def close(self, grace: float) -> None:
        """Let it go, by force after some seconds."""
        processes.let_go(self._process, grace)
        self._connection.close()


@contextmanager
def process_group(count: int, backend: str, job: Callable[..., LearnerJob]) -> Iterator[None]:
    """Learn together with others, started for as long as a `with` block lasts.

    Args:
        count: of all learners.
        backend: of torch.distributed.
        job: returns what a learner needs to know, but what is known here.

    Raises:
        LearnerError: one of them failed.
    """
    members: list[Member] = []
    grace = 0.0
    with TemporaryDirectory(prefix="rlrun-") as folder:
        place = Path(folder) / "learners"
        try:
            for number in range(1, count):
                members.append(Member(job(number=number, count=count, place=place, backend=backend)))
            for member in members:
                while not member.is_ready():
                    pass
            with joined(place, count, backend, lambda: _why(members)):
                yield
            grace = GRACE
        finally:
            for member in members:
                member.close(grace)


def _why(members: list[Member]) -> LearnerError:
    """Return which learner is gone, and why; it may take a moment until that is known."""
    until = time.monotonic() + GRACE
    while time.monotonic() < until:
        for member in members:
            if member.lost():
                return member.error()
        time.sleep(POLL)
    return LearnerError("the connection between learners broke")

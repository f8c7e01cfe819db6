"""The first learner starts the others, receives their state, and ends them."""

import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rlrun.core.errors import LearnerError
from rlrun.runs import learners, processes
from rlrun.security.trust import Limit, limits

READY = "ready"  # what a learner says when all its parts are built; anything else is why and where it failed
AFTER = 3  # exit code of one that left because another one was gone
GRACE = 10.0  # seconds that learners have to leave
POLL = 0.05


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
        machine: what the first learner found out about it.
        limits: what restricts configs in its process.
        token: by which the first learner, and all others with it, owns the run.
    """

    number: int
    count: int
    place: Path
    backend: str
    composed: Any
    run: Path
    checkpoint: str | None
    machine: Any
    limits: Sequence[Limit]
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
                members.append(Member(job(number=number, count=count, place=place, backend=backend, limits=[*limits])))
            for member in members:
                while not member.is_ready():
                    pass
            with learners.joined(place, count, backend, lambda: _why(members)):
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

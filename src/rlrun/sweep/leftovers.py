"""What launchers leave in a sweep's folder: it is removed when all jobs are done and nobody can need it any more.

A keeper needs the folder of its launch from when it is submitted, which may be long before it begins, until submitit
has written what came of it. So a launch is over when its coordinator submits nothing any more, and each job has a
result, or the scheduler says that it has it no more. Where nobody can tell, the folder stays.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rlrun.sweep.book import SILENT, Book

LEFT = "left"  # a file by which a coordinator says that it submits nothing any more
SUBMITTED, RESULT = "_submitted.pkl", "_0_result.pkl"  # as submitit names them
PAUSE = 0.1  # seconds between two looks
DONE = ("completed", "pruned")
Gone = Callable[[Path, str], bool]  # (launch, number of a job) -> whether the scheduler has it no more


def clear(launches: Path, book: Book, gone: Gone, *, own: Path | None = None, patience: float = 0.0) -> None:
    """Remove launches that are over, once all jobs of the sweep are done; of one that failed they may tell why.

    Args:
        launches: their folder.
        book: of the sweep.
        gone: asks the scheduler.
        own: the launch of the coordinator that asks.
        patience: seconds that its last results may take.
    """
    try:
        folders = [path for path in launches.iterdir() if path.is_dir() and not path.is_symlink()]
    except OSError:  # there is none
        return
    until = time.monotonic() + patience
    for launch in folders:
        if not all(entry.state in DONE for entry in book.entries()):  # others may have been added just now
            return
        while launch == own and not is_over(launch, gone) and time.monotonic() < until:
            time.sleep(PAUSE)
        if is_over(launch, gone):
            shutil.rmtree(launch, ignore_errors=True)  # on a network's disk a file that is open still may stay


def is_over(launch: Path, gone: Gone) -> bool:
    """Tell whether nobody can need the folder of a launch any more."""
    try:
        names = {path.name: path.stat().st_mtime for path in launch.iterdir()}
    except OSError:  # somebody else removes it
        return False
    jobs = [name.removesuffix(SUBMITTED) for name in names if name.endswith(SUBMITTED)]
    if LEFT not in names and (not jobs or time.time() - max(names.values()) < SILENT):
        return False  # its coordinator may be at work
    return all(f"{job}{RESULT}" in names or gone(launch, job) for job in jobs)


def say_left(launch: Path) -> None:
    """Say that nothing is submitted any more."""
    with suppress(OSError):  # then the folder stays
        (launch / LEFT).touch()

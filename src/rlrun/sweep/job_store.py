"""The states of a sweep's jobs, in one small file that several coordinators may write.

A coordinator renews its claims on jobs as a heartbeat. One that is silent longer than `SILENT` has lost its jobs.
Another may claim them, and later reports of the first are ignored.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from rlrun.config.overrides import NUMBER, SUBDIR
from rlrun.core.errors import ConfigError, RunDirError, printable
from rlrun.runs.files import require_own_database
from rlrun.runs.trust import remember

if TYPE_CHECKING:
    from rlrun.config.expansion import Job

JOB_STORE = "jobs.sqlite"  # of a sweep's folder
# queued: never in a job store, but shown of one that is running and waits for its scheduler
State = Literal["pending", "queued", "running", "completed", "failed", "pruned"]
SILENT = 60.0  # seconds
PATIENCE = 60.0  # seconds to wait for another process that writes
LONGEST_ROW = 1 << 20  # bytes
KEY = re.compile(r"[0-9A-Za-z_-]+")  # which names a folder
OWN = re.compile(r"logs|launches|.*\.(json|lock|journal|sqlite.*)")  # what else a sweep's folder has
COLUMNS = "key, label, words, state, owner, attempts, code, error, subdir"
LAYOUT = """
CREATE TABLE IF NOT EXISTS jobs (
    key TEXT PRIMARY KEY,
    label TEXT NOT NULL,
    words TEXT NOT NULL,
    state TEXT NOT NULL DEFAULT 'pending',
    owner TEXT,
    beat REAL,
    after REAL NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL DEFAULT 0,
    code INTEGER,
    error TEXT,
    subdir TEXT
)
"""


@dataclass(frozen=True)
class Entry:
    """A job in the store."""

    key: str
    label: str
    overrides: tuple[str, ...]
    state: State
    owner: str | None
    attempts: int  # failures since it was last added or retried
    code: int | None  # exit code of the newest attempt
    error: str | None  # its last line
    subdir: str | None = None  # of the sweep's folder, as the user's pattern named it


@dataclass(frozen=True)
class Task:
    """A job, as its process receives it.

    Attributes:
        folder: the sweep's.
        key: of the job.
        run: its run directory.
        overrides: of its command line.
        composed: what the overrides were composed to; None where the job composes them itself.
        owner: the coordinator that claimed the job; None where there is none.
    """

    folder: Path
    key: str
    run: Path
    overrides: tuple[str, ...]
    config_dir: Path | None = None
    composed: bytes | None = None
    owner: str | None = None

    @property
    def log(self) -> Path:
        """The file for what its process prints."""
        return self.folder / "logs" / f"{self.key}.txt"


def place_of(job: Job | Entry) -> str:
    """Return the run directory of a job, below its sweep's folder."""
    return job.subdir or f"jobs/{job.key}"


def require_apart(jobs: Iterable[Job | Entry]) -> None:
    """Refuse jobs whose run directories are one, or lie one in another, or among the sweep's own files.

    Raises:
        ConfigError: naming two folders, or the one.
    """
    places = sorted(
        (Path(place_of(job).replace(NUMBER, str(number))).parts, job.label) for number, job in enumerate(jobs)
    )
    for path, label in places:
        if not _is_below(Path(*path)):
            raise ConfigError(f"{SUBDIR}: {label}: wanted a folder below the sweep's own, got {Path(*path)}")
    for (path, label), (other, other_label) in pairwise(places):
        if other[: len(path)] == path:
            raise ConfigError(f"{SUBDIR}: {label} and {other_label} would share {Path(*path)}; put {NUMBER} into it")


def _is_below(path: Path) -> bool:
    """Return True if a path leads into a sweep's folder, to none of its own files."""
    names = path.parts
    plain = all(name.isprintable() and name != ".." and len(os.fsencode(name)) < 256 for name in names)
    return bool(names) and plain and not path.is_absolute() and OWN.fullmatch(names[0]) is None


class JobStore:
    """Jobs and their states.

    Args:
        path: of the file.

    Raises:
        RunDirError: the file cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        require_own_database(path)
        with self._writing() as job_store:
            job_store.execute(LAYOUT)
            _require_table(job_store, path)

    def add(self, jobs: Iterable[Job]) -> None:
        """Add jobs; a completed one is pending again if its overrides changed, such as its budget."""
        jobs = list(jobs)
        remember(*(json.dumps(job.overrides) for job in jobs))
        with self._writing() as job_store:
            for job in jobs:
                overrides = json.dumps(job.overrides)
                job_store.execute(
                    "INSERT INTO jobs (key, label, words, subdir) VALUES (?, ?, ?, "
                    "replace(?, ?, (SELECT count(*) FROM jobs))) ON CONFLICT (key) DO UPDATE SET "
                    "state = CASE WHEN state = 'completed' AND words != excluded.words THEN 'pending' ELSE state END, "
                    "attempts = CASE WHEN state = 'completed' THEN 0 ELSE attempts END, "
                    "label = excluded.label, words = excluded.words",
                    (job.key, job.label, overrides, job.subdir, NUMBER),
                )
            require_apart(_entry(row, self.path) for row in job_store.execute(f"SELECT {COLUMNS} FROM jobs"))

    def entries(self) -> list[Entry]:
        """Return all jobs, in the order in which they came."""
        with self._writing() as job_store:
            return [_entry(row, self.path) for row in job_store.execute(f"SELECT {COLUMNS} FROM jobs ORDER BY rowid")]

    def claim(self, owner: str) -> Entry | None:
        """Claim and return a job that no coordinator works on; None if there is none now."""
        now = time.time()
        with self._writing() as job_store:
            row = job_store.execute(
                f"SELECT {COLUMNS} FROM jobs WHERE after <= ? AND (state = 'pending' OR "
                "(state = 'running' AND beat < ?)) ORDER BY rowid LIMIT 1",
                (now, now - SILENT),
            ).fetchone()
            if row is None:
                return None
            changed = "UPDATE jobs SET state = 'running', owner = ?, beat = ? WHERE key = ?"
            job_store.execute(changed, (owner, now, row[0]))
        return replace(_entry(row, self.path), owner=owner)

    def is_owner(self, owner: str, key: str) -> bool:
        """Return True if a coordinator holds the claim on a job."""
        with self._writing() as job_store:
            row = job_store.execute("SELECT owner FROM jobs WHERE key = ? AND state = 'running'", (key,)).fetchone()
        return bool(row == (owner,))

    def beat(self, owner: str, keys: Iterable[str]) -> set[str]:
        """Renew the claims of a coordinator on these jobs; return those that it has lost."""
        lost = set()
        with self._writing() as job_store:
            for key in keys:
                changed = job_store.execute(
                    "UPDATE jobs SET beat = ? WHERE key = ? AND owner = ? AND state = 'running'",
                    (time.time(), key, owner),
                )
                if changed.rowcount == 0:
                    lost.add(key)
        return lost

    def end(
        self,
        owner: str,
        key: str,
        state: State,
        *,
        code: int | None = None,
        error: str | None = None,
        delay: float = 0.0,
        counts: bool = False,
        overrides: tuple[str, ...] | None = None,
    ) -> bool:
        """Note how work on a job ended; return False if the claim was lost, and note nothing.

        delay: seconds before a job that is pending again can be claimed.
        counts: whether this was an attempt that failed.
        overrides: that it ran with; a completed job whose overrides changed meanwhile is pending again.
        """
        with self._writing() as job_store:
            row = job_store.execute(
                f"SELECT {COLUMNS} FROM jobs WHERE key = ? AND owner = ? AND state = 'running'", (key, owner)
            ).fetchone()
            if row is None:
                return False
            if state == "completed" and overrides is not None and _entry(row, self.path).overrides != overrides:
                state = "pending"
            job_store.execute(
                "UPDATE jobs SET state = ?, owner = NULL, beat = NULL, code = ?, error = ?, after = ?, "
                "attempts = attempts + ? WHERE key = ?",
                (state, code, error, time.time() + delay, counts, key),
            )
            return True

    def free(self, gone: Callable[[str], bool]) -> None:
        """Free the jobs of coordinators that are known to have ended."""
        with self._writing() as job_store:
            owners = job_store.execute("SELECT DISTINCT owner FROM jobs WHERE state = 'running'").fetchall()
            job_store.executemany(
                "UPDATE jobs SET state = 'pending', owner = NULL, beat = NULL WHERE owner = ? AND state = 'running'",
                [owner for owner in owners if gone(*owner)],
            )

    def retry(self) -> int:
        """Make failed jobs pending again; return how many."""
        with self._writing() as job_store:
            return job_store.execute("UPDATE jobs SET state = 'pending', attempts = 0 WHERE state = 'failed'").rowcount

    def prune(self, keys: Iterable[str]) -> None:
        """Prune those of some jobs that have not ended."""
        with self._writing() as job_store:
            job_store.executemany(
                "UPDATE jobs SET state = 'pruned', owner = NULL, beat = NULL "
                "WHERE key = ? AND state IN ('pending', 'running')",
                [(key,) for key in keys],
            )

    def revive(self, keys: Iterable[str]) -> None:
        """Make those of some jobs pending again that were pruned."""
        with self._writing() as job_store:
            job_store.executemany(
                "UPDATE jobs SET state = 'pending' WHERE key = ? AND state = 'pruned'", [(key,) for key in keys]
            )

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Hold the only transaction; all of it is written, or nothing."""
        try:
            with closing(sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None)) as job_store:
                job_store.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_ROW)
                job_store.execute("BEGIN IMMEDIATE")
                try:
                    yield job_store
                except BaseException:
                    job_store.execute("ROLLBACK")
                    raise
                job_store.execute("COMMIT")
        except sqlite3.Error as error:
            raise RunDirError(f"{self.path} cannot be used: {error}") from error


def look(path: Path) -> list[Entry]:
    """Return all jobs as `JobStore.entries` does, without writing: for those who only look on.

    Raises:
        RunDirError: the file cannot be read, or is being written.
    """
    require_own_database(path)
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", timeout=1.0, uri=True)) as job_store:
            job_store.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_ROW)
            _require_table(job_store, path)
            return [_entry(row, path) for row in job_store.execute(f"SELECT {COLUMNS} FROM jobs ORDER BY rowid")]
    except sqlite3.Error as error:
        raise RunDirError(f"{path} cannot be read: {error}") from error


def _require_table(job_store: sqlite3.Connection, path: Path) -> None:
    """Refuse a view and a virtual table, which could have rows without end, with a RunDirError."""
    if job_store.execute("SELECT 1 FROM sqlite_master WHERE name = 'jobs' AND rootpage > 0").fetchone() is None:
        raise RunDirError(f"{path} is damaged: it has no table of jobs")


def _entry(row: tuple[Any, ...], path: Path) -> Entry:
    """Return a row as an entry.

    Raises:
        RunDirError: it is not a row of a coordinator.
    """
    key, label, overrides, state, owner, attempts, code, error, subdir = row
    with suppress(TypeError, ValueError, RecursionError):
        overrides = tuple(json.loads(overrides))
        texts = (key, label, *overrides, *(text for text in (owner, error, subdir) if text is not None))
        numbers = (attempts, *(() if code is None else (code,)))
        plain = all(isinstance(text, str) for text in texts) and all(isinstance(number, int) for number in numbers)
        plain = plain and (subdir is None or _is_below(Path(subdir)))
        if plain and KEY.fullmatch(key) and state in get_args(State):
            message = None if error is None else printable(error)
            return Entry(key, printable(label), overrides, state, owner, attempts, code, message, subdir)
    raise RunDirError(f"{path} is damaged: it lists a job that is none")

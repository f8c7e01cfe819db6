"""What a sweep's book says of jobs, read without touching it: the folder may be read-only, or somebody else's."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from rlrun.errors import RunDirError
from rlrun.reporting.runs import Run, by_key, task_of
from rlrun.sweep.book import BOOK, KEY
from rlrun.sweep.sweeping import is_sweep
from rlrun.watching import printable

MOST = 100_000  # jobs of a sweep
TEXT = 2_000  # letters of a reason
REASONS = {"pruned": "its search left it for better ones"}
PATIENCE = 10.0  # seconds to wait for a coordinator that writes


class JobRow(NamedTuple):
    """What the book says of a job."""

    words: dict[str, str]
    state: str
    error: str | None


def complete(runs: list[Run], folders: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """Add what sweeps know: jobs that have no run, and why others failed.

    Returns:
        The runs, and what could not be read.
    """
    by_path, troubles = {run.path.resolve(): run for run in runs}, []
    tasks = {_env_words(run.words): run.task for run in runs}
    for folder, source in _sweeps(runs, folders):
        try:
            jobs = dict(_read(folder / BOOK))
        except RunDirError as error:
            troubles.append(str(error))
            continue
        for key, job in jobs.items():
            place = folder / "jobs" / key
            known = by_path.get(place.resolve())  # one folder may be named twice
            if known is None:
                by_path[place.resolve()] = _without_run(place, source, job, tasks)
            elif known.status != "completed" and (why := job.error or REASONS.get(job.state)):
                by_path[place.resolve()] = replace(known, reason=why)
    return list(by_path.values()), troubles


def _without_run(place: Path, source: Path, job: JobRow, tasks: dict[Any, str]) -> Run:
    _, _, seed = job.words.get("seed", "").partition("=")
    reason = job.error or {"completed": "its folder is gone", "pending": "it was never begun", **REASONS}.get(job.state)
    return Run(
        path=place,
        source=source,
        words=job.words,
        seed=int(seed) if seed.isdecimal() and len(seed) < 20 else 0 if not seed else None,
        task=tasks.get(_env_words(job.words), task_of(job.words)),
        status="failed" if job.state == "failed" else "missing",
        reason=reason,
    )


def _env_words(words: dict[str, str] | Any) -> tuple[str, ...]:
    return tuple(sorted(text for key, text in words.items() if key.split(".")[0] in ("env", "experiment")))


def _sweeps(runs: Iterable[Run], folders: Iterable[Path]) -> Iterator[tuple[Path, Path]]:
    """Yield each sweep that lies in one of the folders or beneath it, and that folder."""
    places = [(folder, folder) for folder in folders]
    above = [(run.path.parent.parent, run.source) for run in runs]
    places += [(place, source) for place, source in above if place.is_relative_to(source)]
    for place, source in dict.fromkeys(places):
        if is_sweep(place):
            yield place, source


def _read(path: Path) -> Iterator[tuple[str, JobRow]]:
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=PATIENCE)) as book:
            rows = book.execute("SELECT key, words, state, error FROM jobs ORDER BY rowid LIMIT ?", (MOST,)).fetchall()
    except sqlite3.Error as error:
        raise RunDirError(f"{path} cannot be read: {error}") from error
    for key, words, state, reason in rows:
        if isinstance(key, str) and KEY.fullmatch(key):
            yield key, JobRow(_listed(words), str(state), None if reason is None else printable(str(reason)[:TEXT]))


def _listed(words: Any) -> dict[str, str]:
    try:
        parsed = json.loads(words)
    except (TypeError, ValueError, RecursionError):
        return {}
    return by_key(map(str, parsed)) if isinstance(parsed, list) else {}

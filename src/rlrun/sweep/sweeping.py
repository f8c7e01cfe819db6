"""Begin a sweep, add to it, or go on with it; the twins of `rlrun train -m` and `rlrun resume SWEEP`."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterable
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlrun.config.layering import told_presets
from rlrun.errors import RunDirError
from rlrun.files import reason, write_json
from rlrun.rundir import is_run
from rlrun.sweep.book import BOOK, Book, Entry
from rlrun.sweep.coordinator import Coordinator, Launcher, Limits
from rlrun.sweep.expansion import Job
from rlrun.sweep.far import LATE, Far
from rlrun.sweep.launching import Tasks
from rlrun.sweep.leftovers import clear
from rlrun.sweep.means import Means, of_launcher
from rlrun.sweep.places import require_own
from rlrun.sweep.search.plan import ABOUT as SEARCH
from rlrun.sweep.search.plan import Plan
from rlrun.sweep.search.search import Search
from rlrun.sweep.showing import Show, rows, summary

ABOUT = "sweep.json"


@dataclass(frozen=True)
class Outcome:
    """A sweep when a coordinator left it: its folder, its jobs, and the exit code that tells how it went."""

    folder: Path
    entries: list[Entry]
    code: int
    answer: str | None = None  # of a search

    def describe(self) -> str:
        """Return two lines: how many jobs are in which state, and where they lie; then what a search found."""
        return "\n".join(filter(None, (summary(self.entries), str(self.folder), self.answer)))

    def table(self) -> list[tuple[str, ...]]:
        """Return a head, then a row for each job: its overrides, how it ended, and with which return."""
        return rows(self.folder, self.entries)


def is_sweep(path: Path) -> bool:
    """Tell whether a folder is a sweep's."""
    return (path / ABOUT).is_file()


def sweep(
    jobs: Iterable[Job] = (),
    *,
    plan: Plan | None = None,
    folder: Path | None = None,
    config_dir: Path | None = None,
    workers: int | None = None,
    limits: Limits | None = None,
    means: Means | None = None,
) -> Outcome:
    """Run jobs, those first that were begun before.

    Args:
        jobs: of `expand`.
        plan: a search, which adds further jobs.
        folder: a new one, or that of a sweep to which these jobs are added; None = `sweeps/<date>_<time>`.
        config_dir: the user's own conf folder.
        workers: jobs at a time; None = as many as the launcher has room for.
        limits: when to give up.
        means: with which the jobs are launched; None = local processes.

    Raises:
        RunDirError: the folder holds something else, or cannot be written.
    """
    means = means or Means()
    launching = _ready(means.launcher(), endless=plan is not None and workers is None)
    folder = _sweep_folder(folder)
    book, jobs = Book(folder / BOOK), list(jobs)
    if plan is not None:
        if not (folder / SEARCH).exists() and book.entries():
            raise RunDirError(f"{folder} holds a sweep that is no search; name another folder")
        plan.save(folder)
    book.add(jobs)
    if not is_sweep(folder):  # the last of its files: what is a sweep has its jobs
        about = {"command": sys.argv[1:], "created": datetime.now(UTC).isoformat(timespec="seconds")}
        about["launcher"] = of_launcher(means.words)
        write_json(folder / ABOUT, {**about, "host": socket.gethostname(), "project": str(Path.cwd())})
    # The folder may be somebody else's, and its other jobs with it.
    typed = {job.key: job for job in jobs}
    launcher = launching(Tasks(folder, config_dir, typed=typed))
    preset = told_presets([job.pair for job in jobs] if plan is None else [plan.pair])
    return _coordinate(folder, book, launcher, workers=workers, limits=limits, plan=plan, typed=typed, preset=preset)


def resume(
    path: Path,
    *,
    retry_failed: bool = False,
    config_dir: Path | None = None,
    workers: int | None = None,
    limits: Limits | None = None,
    trust: Iterable[str] = (),
    means: Means | None = None,
) -> Outcome:
    """Go on with a sweep: run what is missing, and what was begun and not finished, from its newest checkpoint.

    Args:
        path: the sweep's folder. It may come from elsewhere: what its jobs import is limited as for any run.
        retry_failed: run jobs again that failed, from their newest checkpoint.
        config_dir: the user's own conf folder, the same that the sweep was begun with.
        trust: packages that the user trusts beyond those of any run.
        means: with which the jobs are launched; None = local processes.

    Raises:
        RunDirError: it is no sweep, or cannot be read.
    """
    folder = path.absolute()
    searched = (folder / SEARCH).is_file()
    launching = _ready((means or Means()).launcher(), endless=searched and workers is None)
    require_own(folder, BOOK)
    book = Book(folder / BOOK)
    if retry_failed:
        book.retry()
    plan = Plan.load(folder, config_dir, foreign=folder, packages=trust) if searched else None
    launcher = launching(Tasks(folder, config_dir, trust=tuple(trust)))
    return _coordinate(folder, book, launcher, workers=workers, limits=limits, plan=plan)


def _ready(launching: Any, *, endless: bool) -> Any:
    """Return the recipe of a launcher, if it can work here, which its `require` tells before anything is made.

    endless: jobs come as there is room for them.
    """
    check = getattr(launching.func, "require", None)
    if check is not None:
        check(**launching.keywords, endless=endless)
    return launching


def _coordinate(
    folder: Path,
    book: Book,
    launcher: Launcher,
    *,
    workers: int | None,
    limits: Limits | None,
    plan: Plan | None = None,
    typed: dict[str, Job] | None = None,
    preset: str = "",
) -> Outcome:
    with (
        Show(folder, grows=plan is not None) as show,
        closing(launcher),
        nullcontext() if plan is None else Search(plan, folder, book, typed, show.say) as source,
    ):
        if preset:
            show.say(preset)
        count = workers or launcher.workers([*book.entries(), *([] if plan is None else plan.sample)])
        coordinator = Coordinator(
            folder, book, launcher, workers=count, limits=limits or Limits(), show=show, source=source
        )
        code = coordinator.run()
        if source is not None and source.fruitless:
            code = code or 1
    if isinstance(launcher, Far):
        clear(folder / "launches", book, launcher.gone, own=launcher.launches, patience=LATE)
    else:
        clear(folder / "launches", book, lambda launch, number: False)
    return Outcome(folder, book.entries(), code, None if source is None else source.result)


def _sweep_folder(folder: Path | None) -> Path:
    """Return a folder that is a sweep's, or empty."""
    if folder is None:
        return _new(Path("sweeps").absolute())
    folder = folder.absolute()
    if is_run(folder):
        raise RunDirError(f"sweep directory {folder} holds a run; name another folder")
    if folder.is_dir() and not is_sweep(folder) and not all(map(_ours, folder.iterdir())):
        raise RunDirError(f"sweep directory {folder} is not empty, and no sweep")
    require_own(folder, BOOK)
    _make(folder)
    return folder


def _ours(entry: Path) -> bool:
    """Tell whether this may be of a coordinator that begins the same sweep just now."""
    return entry.name.lstrip(".").startswith(("jobs", "logs", ABOUT, SEARCH))


def _new(root: Path) -> Path:
    stem, k = f"{datetime.now():%Y-%m-%d_%H-%M-%S}", 1
    while not _make(folder := root / (stem if k == 1 else f"{stem}-{k}")):
        k += 1
    return folder


def _make(folder: Path) -> bool:
    """Make the folder and what lies in it; False where it existed, or another process has just made it."""
    try:
        new = False
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
            new = True
        for name in ("jobs", "logs"):
            (folder / name).mkdir(exist_ok=True)
    except OSError as error:
        raise RunDirError(f"sweep directory {folder} cannot be made: {reason(error)}") from error
    return new

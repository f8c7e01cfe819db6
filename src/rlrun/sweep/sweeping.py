"""Begin a sweep, add to it, or resume it; what `rlrun train -m` and `rlrun resume SWEEP` do.

Overrides of the sweep itself choose all but its jobs: `launcher=slurm launcher.partition=long`,
`+sweep=optuna`.
"""

import json
import socket
import sys
from collections.abc import Iterable, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from rlrun import config as configuration
from rlrun.commands.ls import about
from rlrun.config.build import Builder
from rlrun.config.composition import OF_SWEEPS, describe_presets
from rlrun.config.expansion import Job
from rlrun.core.errors import RunDirError
from rlrun.runs.directory import RunDir, is_run
from rlrun.runs.files import json_text, known, read_bytes, reason, write_text
from rlrun.runs.trust import remember, require_remembered, said_by
from rlrun.sweep.coordinator import Coordinator, Launcher, Limits
from rlrun.sweep.job_store import JOB_STORE, Entry, JobStore, place_of
from rlrun.sweep.local import Tasks
from rlrun.sweep.remote import remove_launches
from rlrun.sweep.search import Optuna, Search, SearchPlan
from rlrun.sweep.search.search import ANSWER
from rlrun.sweep.search.settings import ABOUT as SEARCH
from rlrun.sweep.showing import Show, summary

ABOUT = "sweep.json"
PRIMARY = "multirun"  # the config file that lists the groups of a sweep's own overrides


def apart(overrides: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the overrides of the jobs, and those of the sweep itself."""
    parts: tuple[list[str], list[str]] = [], []
    for override in overrides:
        parts[_group(override) in OF_SWEEPS].append(override)
    return parts


def _group(override: str) -> str:
    """Return the first part of an override's key."""
    return override.strip().lstrip("+~").partition("=")[0].split(".")[0]


def recalled(overrides: Iterable[str], about: Path) -> list[str]:
    """Return overrides of a sweep that is resumed, and the launcher's of its beginning, unless they have some.

    about: the file in which these were noted.
    """
    typed = list(overrides)
    return typed if "launcher" in map(_group, typed) else [*known(about).get("launcher", []), *typed]


def require_trusted(folder: Path, trust: bool = False) -> None:
    """Refuse to run jobs of a sweep that was not made here, and of runs in it.

    Args:
        folder: of the sweep.
        trust: run them, and remember them.

    Raises:
        RequestError: a job is not trusted, or the sweep cannot be read.
    """
    entries = JobStore(folder / JOB_STORE).entries()
    notes = [read_bytes(path) for name in (ABOUT, SEARCH) if (path := folder / name).exists()]
    jobs = [json.dumps(entry.overrides) for entry in entries]
    runs = [text for entry in entries for text in said_by(folder / place_of(entry))]
    why = f"this sweep was not made here; read {folder / ABOUT} and the overrides of its jobs, then say --trust"
    require_remembered(folder, [*notes, *jobs, *runs], trust, why)


class Means:
    """The launcher and the search that a sweep's own overrides choose.

    Args:
        overrides: of `apart`.
        config_dir: the user's own conf folder.

    Raises:
        ConfigError: an override is wrong.
    """

    def __init__(self, overrides: Sequence[str] = (), config_dir: Path | None = None) -> None:
        composed = configuration.compose(overrides, config_dir, primary=PRIMARY, roots=OF_SWEEPS)
        self.overrides = composed.overrides
        self.choices = composed.choices
        self._builder = Builder(composed.config)

    def launcher(self) -> Any:
        """Return the recipe of the launcher, to be called with the sweep's tasks."""
        return self._builder.get("launcher")

    def ready_launcher(self, *, endless: bool) -> Any:
        """Return it if it can work here, which its `require` checks before anything is made.

        endless: jobs come as there is room for them.
        """
        recipe = self.launcher()
        if hasattr(recipe.func, "require"):
            recipe.func.require(**recipe.keywords, endless=endless)
        return recipe

    def search(self) -> Optuna | None:
        """Return how values are searched; None: all combinations are jobs."""
        return None if self.choices.get("sweep") is None else self._builder.get("sweep")


@dataclass(frozen=True)
class SweepOutcome:
    """A sweep when a coordinator left it: its folder, its jobs, and its exit code."""

    folder: Path
    entries: list[Entry]
    code: int
    answer: str | None = None  # of a search

    def describe(self) -> str:
        """Return two lines: how many jobs are in which state, and where they are; then what a search found."""
        return "\n".join(filter(None, (summary(self.entries), str(self.folder), self.answer)))

    def to_json(self) -> dict[str, Any]:
        """Return the object that `rlrun train -m --json` prints: its jobs with their runs, and what a search found."""
        jobs = [(entry, RunDir(self.folder / place_of(entry))) for entry in self.entries]
        return {
            "path": str(self.folder),
            "jobs": [
                {"job": entry.key, "overrides": entry.overrides, "state": entry.state, "error": entry.error}
                | {"run": about(run).to_json() if is_run(run.path) else None}
                for entry, run in jobs
            ],
            "search": known(self.folder / ANSWER) or None,
        }


def is_sweep(path: Path) -> bool:
    """Return True if a folder is a sweep's."""
    return (path / ABOUT).is_file()


def sweep(
    jobs: Iterable[Job] = (),
    plan: SearchPlan | None = None,
    *,
    folder: Path | None = None,
    config_dir: Path | None = None,
    workers: int | None = None,
    limits: Limits | None = None,
    means: Means | None = None,
    trust: bool = False,
) -> SweepOutcome:
    """Run jobs, those first that were begun before.

    Args:
        jobs: of `expand`.
        plan: a search, which adds further jobs.
        folder: a new one, or that of a sweep to which these jobs are added; None = `sweeps/<date>_<time>`.
        config_dir: the user's own conf folder.
        workers: jobs at a time; None = as many as the launcher has room for.
        limits: when to give up.
        means: with which the jobs are launched; None = local processes.
        trust: also run jobs of the folder that were not added here, and remember them.

    Raises:
        RequestError: the folder holds something else, is not trusted, or cannot be written.
    """
    means = means or Means()
    launching = means.ready_launcher(endless=plan is not None and workers is None)
    folder = _sweep_folder(folder)
    if (folder / JOB_STORE).exists():
        require_trusted(folder, trust)
    job_store, jobs = JobStore(folder / JOB_STORE), list(jobs)
    if plan is not None:
        if not (folder / SEARCH).exists() and job_store.entries():
            raise RunDirError(f"{folder} holds a sweep that is not a search; name another folder")
        plan.save(folder)
    job_store.add(jobs)
    if not is_sweep(folder):  # the last of its files: what is a sweep has its jobs
        about = {"command": sys.argv[1:], "created": datetime.now(UTC).isoformat(timespec="seconds")}
        about["launcher"] = [override for override in means.overrides if _group(override) == "launcher"]
        text = json_text({**about, "host": socket.gethostname(), "project": str(Path.cwd())})
        remember(text)
        write_text(folder / ABOUT, text)
    typed = {job.key: job for job in jobs}
    launcher = launching(Tasks(folder, config_dir, typed=typed))
    preset = describe_presets([job.preset for job in jobs] if plan is None else [plan.preset])
    return _coordinate(
        folder, job_store, launcher, workers=workers, limits=limits, plan=plan, typed=typed, preset=preset
    )


def resume(
    path: Path,
    *,
    retry_failed: bool = False,
    config_dir: Path | None = None,
    workers: int | None = None,
    limits: Limits | None = None,
    means: Means | None = None,
) -> SweepOutcome:
    """Resume a sweep: run what is missing, and what was begun and not finished, from its newest checkpoint.

    Args:
        path: the sweep's folder, which is trusted.
        retry_failed: run jobs again that failed, from their newest checkpoint.
        config_dir: the user's own conf folder, the same that the sweep was begun with.
        workers: jobs that run at a time; None = as many as the sweep was begun with.
        limits: when to give up; None = those of the beginning.
        means: with which the jobs are launched; None = local processes.

    Raises:
        RunDirError: it is no sweep, or cannot be read.
    """
    folder = path.absolute()
    searched = (folder / SEARCH).is_file()
    launching = (means or Means()).ready_launcher(endless=searched and workers is None)
    job_store = JobStore(folder / JOB_STORE)
    if retry_failed:
        job_store.retry()
    plan = SearchPlan.load(folder, config_dir) if searched else None
    launcher = launching(Tasks(folder, config_dir))
    return _coordinate(folder, job_store, launcher, workers=workers, limits=limits, plan=plan)


def _coordinate(
    folder: Path,
    job_store: JobStore,
    launcher: Launcher,
    *,
    workers: int | None,
    limits: Limits | None,
    plan: SearchPlan | None = None,
    typed: dict[str, Job] | None = None,
    preset: str = "",
) -> SweepOutcome:
    show = Show(folder, grows=plan is not None)
    with (
        closing(launcher),
        nullcontext() if plan is None else Search(plan, folder, job_store, typed, show.say) as source,
    ):
        if preset:
            show.say(preset)
        places = workers or launcher.workers([*job_store.entries(), *([] if plan is None else plan.sample)])
        coordinator = Coordinator(
            folder, job_store, launcher, workers=places, limits=limits or Limits(), show=show, source=source
        )
        code = coordinator.run()
        if source is not None and source.fruitless:
            code = code or 1
    remove_launches(folder / "launches", job_store)
    return SweepOutcome(folder, job_store.entries(), code, None if source is None else source.result)


def _sweep_folder(folder: Path | None) -> Path:
    """Return a folder that is a sweep's, or empty."""
    if folder is None:
        stem = Path("sweeps").absolute() / f"{datetime.now():%Y-%m-%d_%H-%M-%S}"
        return next(path for k in count(1) if _make(path := stem if k == 1 else stem.with_name(f"{stem.name}-{k}")))
    folder = folder.absolute()
    if is_run(folder):
        raise RunDirError(f"sweep directory {folder} holds a run; name another folder")
    if folder.is_dir() and not is_sweep(folder):
        ours = ("jobs", "logs", ABOUT, SEARCH)  # of a coordinator that begins the same sweep just now
        if not all(entry.name.lstrip(".").startswith(ours) for entry in folder.iterdir()):
            raise RunDirError(f"sweep directory {folder} is not empty, and no sweep")
    _make(folder)
    return folder


def _make(folder: Path) -> bool:
    """Make the folder and what is in it; False where it existed, or another process has just made it."""
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

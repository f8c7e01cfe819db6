"""Begin, extend or resume a sweep: the work of `rlrun train -m` and `rlrun resume SWEEP`.

Overrides of the sweep itself choose its launcher and its search: `launcher=slurm launcher.partition=long`,
`+sweep=optuna`.
"""

import re
import shutil
import socket
import sys
from collections.abc import Iterable, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rlrun import config as configuration
from rlrun.commands.ls import about
from rlrun.config.build import Builder
from rlrun.config.composition import OF_SWEEPS, describe_presets
from rlrun.config.expansion import Job
from rlrun.config.overrides import GRID
from rlrun.core.errors import ConfigError, RunDirError
from rlrun.core.files import json_text, known, read_bytes, reason, write_text
from rlrun.runs.directory import is_run
from rlrun.runs.trust import remember, require_remembered, said_by
from rlrun.sweep.command import JobCommand
from rlrun.sweep.directory import SweepDir
from rlrun.sweep.progress import Show, summary
from rlrun.sweep.scheduler import Limits, schedule
from rlrun.sweep.search import Optuna, Search, SearchPlan
from rlrun.sweep.search.search import ANSWER
from rlrun.sweep.search.settings import ABOUT as SEARCH

ABOUT = "sweep.json"
OF_A_START = re.compile(  # files of another process that is just beginning the same sweep
    r"jobs|logs|jobs\.lock|(\.)?(jobs\.jsonl|sweep\.json|search\.json)(?(1)\.\d+-\d+\.tmp)"
)
PRIMARY = "multirun"  # primary config for a sweep's own overrides


def split_overrides(overrides: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the overrides of the jobs, and those of the sweep itself; `sweep.params.KEY=A,B` goes to the jobs."""
    parts: tuple[list[str], list[str]] = [], []
    for override in overrides:
        override = re.sub(r"^\s*\+*sweep\.params\b", GRID, override)
        parts[_group(override) in OF_SWEEPS].append(override)
    return parts


def _group(override: str) -> str:
    """Return the first name in an override's key."""
    return override.strip().lstrip("+~").partition("=")[0].split(".")[0]


def with_saved_launcher(overrides: Iterable[str], about: Path) -> list[str]:
    """Add the launcher's overrides from the beginning of a sweep, unless new ones choose a launcher.

    about: the file with the sweep's first overrides.
    """
    typed = list(overrides)
    return typed if "launcher" in map(_group, typed) else [*known(about).get("launcher", []), *typed]


def require_trusted(folder: Path, trust: bool = False) -> None:
    """Refuse to run jobs of a sweep that is not trusted.

    Args:
        folder: of the sweep.
        trust: accept all jobs and runs in it, and remember that they are trusted.

    Raises:
        RequestError: a job is not trusted, or the sweep cannot be read.
    """
    directory = SweepDir(folder)
    notes = [(path, read_bytes(path)) for name in (ABOUT, SEARCH) if (path := directory.path / name).exists()]
    folders = [directory.run(job).path for job in directory.jobs()]
    lines = [(directory.list, line) for line in directory.lines()]
    runs = [said for path in folders for said in said_by(path)]
    root = directory.path.resolve()
    away = [(path, f"{path} is {place}") for path in folders if not (place := path.resolve()).is_relative_to(root)]
    require_remembered(folder, [*notes, *lines, *runs, *away], trust, "this sweep was not made here")


class SweepSettings:
    """The launcher and the search that a sweep's own overrides choose.

    Args:
        overrides: of `split_overrides`.
        config_dir: the user's own conf folder.

    Raises:
        ConfigError: an override is wrong.
    """

    def __init__(self, overrides: Sequence[str] = (), config_dir: Path | None = None) -> None:
        composed = configuration.compose(overrides, config_dir, primary=PRIMARY, roots=OF_SWEEPS)
        self.overrides = composed.overrides
        self.choices = composed.choices
        self._config, self._builder = composed.config, Builder(composed.config)

    def launcher(self) -> Any:
        """Return the recipe of the launcher; call it with the sweep's folder.

        Raises:
            ConfigError: the config has no recipe.
        """
        if OmegaConf.select(self._config, "launcher._partial_") is not True:
            raise ConfigError("launcher: wanted _target_, the path of a class, and _partial_: true")
        return self._builder.get("launcher")

    def ready_launcher(self, *, endless: bool) -> Any:
        """Return the launcher's recipe after its own check, `require`, that it can work here.

        endless: a search adds jobs for all free workers, without a limit.
        """
        recipe = self.launcher()
        if hasattr(recipe.func, "require"):
            recipe.func.require(**recipe.keywords, endless=endless)
        return recipe

    def search(self) -> Optuna | None:
        """Return the settings of the search; None if all combinations are jobs."""
        if self.choices.get("sweep") is None:
            return None
        search = self._builder.get("sweep")
        if not isinstance(search, Optuna):
            raise ConfigError(f"sweep: wanted _target_: rlrun.sweep.search.Optuna, got {type(search).__name__}")
        return search


@dataclass(frozen=True)
class SweepOutcome:
    """The outcome of a sweep when this process leaves it: its folder, its jobs, and the exit code."""

    sweep: SweepDir
    code: int
    answer: str | None = None  # result of a search

    def describe(self) -> str:
        """Return two lines, with the states of the jobs and the folder, then the result of a search."""
        return "\n".join(filter(None, (summary(self.sweep.statuses()), str(self.sweep.path), self.answer)))

    def to_json(self) -> dict[str, Any]:
        """Return the object that `rlrun train -m --json` prints: jobs with their runs, and the result of a search."""
        jobs = [
            {"job": job.key, "overrides": job.overrides, "state": state, "error": error}
            | {"run": about(run).to_json() if is_run((run := self.sweep.run(job)).path) else None}
            for job, state, _, error in self.sweep.statuses()
        ]
        return {"path": str(self.sweep.path), "jobs": jobs, "search": known(self.sweep.path / ANSWER) or None}


def is_sweep(path: Path) -> bool:
    """Return True if a folder contains a sweep."""
    return (path / ABOUT).is_file()


def sweep(
    jobs: Iterable[Job] = (),
    plan: SearchPlan | None = None,
    *,
    folder: Path | None = None,
    config_dir: Path | None = None,
    workers: int | None = None,
    limits: Limits | None = None,
    settings: SweepSettings | None = None,
    trust: bool = False,
) -> SweepOutcome:
    """Run the jobs of a new or existing sweep; jobs that were begun earlier come first.

    Args:
        jobs: from `expand`.
        plan: of a search, which adds further jobs.
        folder: a new one, or that of a sweep to which these jobs are added; None = `sweeps/<date>_<time>`.
        config_dir: the user's own conf folder.
        workers: jobs at a time; None = as many as the launcher can run.
        limits: at which to give up.
        settings: with the launcher; None = local processes.
        trust: also run jobs in the folder that came from elsewhere, and remember that they are trusted.

    Raises:
        RequestError: the folder contains something else, is not trusted, or cannot be written.
    """
    settings = settings or SweepSettings()
    launching, limits = settings.ready_launcher(endless=plan is not None and workers is None), limits or Limits()
    directory, jobs = SweepDir(_sweep_folder(folder), limits.retries), list(jobs)
    if directory.list.exists() or is_sweep(directory.path):
        require_trusted(directory.path, trust)
    if plan is not None:
        if is_sweep(directory.path) and not (directory.path / SEARCH).exists():
            raise RunDirError(f"{directory.path} holds a sweep that is not a search; name another folder")
        plan.save(directory.path)
    directory.add(jobs)
    if not is_sweep(directory.path):  # sweep.json is written last, so that every sweep has its jobs
        note = {"command": sys.argv[1:], "created": datetime.now(UTC).isoformat(timespec="seconds")}
        note["launcher"] = [override for override in settings.overrides if _group(override) == "launcher"]
        text = json_text({**note, "host": socket.gethostname(), "project": str(Path.cwd())})
        remember(text)
        write_text(directory.about, text)
    preset = describe_presets([job.preset for job in jobs] if plan is None else [plan.preset])
    return _run(directory, launching, config_dir, workers=workers, limits=limits, plan=plan, preset=preset)


def resume(
    path: Path,
    *,
    retry_failed: bool = False,
    config_dir: Path | None = None,
    workers: int | None = None,
    limits: Limits | None = None,
    settings: SweepSettings | None = None,
) -> SweepOutcome:
    """Resume a sweep: run missing jobs, and continue unfinished ones from their newest checkpoints.

    Args:
        path: the sweep's folder, which is trusted.
        retry_failed: also continue failed jobs, from their newest checkpoints.
        config_dir: the user's own conf folder, the same as at the sweep's beginning.
        workers: jobs at a time; None = as many as the launcher can run.
        limits: at which to give up.
        settings: with the launcher; None = local processes.

    Raises:
        RunDirError: the folder contains no sweep, or cannot be read.
    """
    limits = limits or Limits()
    directory, searched = SweepDir(path, limits.retries), (path / SEARCH).is_file()
    launching = (settings or SweepSettings()).ready_launcher(endless=searched and workers is None)
    if not searched and not directory.jobs():
        raise RunDirError(f"{directory.list} is damaged: it has no job")
    if retry_failed:
        directory.reopen([job.key for job in directory.jobs()], "failed")
    plan = SearchPlan.load(directory.path, config_dir) if searched else None
    return _run(directory, launching, config_dir, workers=workers, limits=limits, plan=plan)


def _run(
    directory: SweepDir,
    launching: Any,
    config_dir: Path | None,
    *,
    workers: int | None,
    limits: Limits,
    plan: SearchPlan | None,
    preset: str = "",
) -> SweepOutcome:
    def command(job: Job) -> JobCommand:
        """Return the command of a job."""
        conf = None if config_dir is None else config_dir.absolute()
        return JobCommand(job, directory.run(job).path, directory.log(job), conf, launcher.ranks)

    show = Show(directory, grows=plan is not None)
    with (
        closing(launching(directory.path)) as launcher,
        nullcontext() if plan is None else Search(plan, directory, show.say) as search,
    ):
        if preset:
            show.say(preset)
        jobs = [*directory.jobs(), *([] if plan is None else plan.sample)]
        workers = workers or launcher.workers(jobs)
        code = schedule(directory, launcher, command, workers=workers, limits=limits, show=show, search=search)
    if search is not None and search.fruitless:
        code = code or 1
    if all(status.state in ("completed", "pruned") for status in directory.statuses()):
        shutil.rmtree(directory.path / "launches", ignore_errors=True)  # kept after a failure, as they may show why
    return SweepOutcome(directory, code, None if search is None else search.result)


def _sweep_folder(folder: Path | None) -> Path:
    """Return a folder that is empty or contains a sweep."""
    if folder is None:
        stem = Path("sweeps").absolute() / f"{datetime.now():%Y-%m-%d_%H-%M-%S}"
        return next(path for k in count(1) if _make(path := stem if k == 1 else stem.with_name(f"{stem.name}-{k}")))
    folder = folder.absolute()
    if is_run(folder):
        raise RunDirError(f"sweep directory {folder} holds a run; name another folder")
    entries = folder.iterdir() if folder.is_dir() and not is_sweep(folder) else ()
    if not all(OF_A_START.fullmatch(entry.name) for entry in entries):
        raise RunDirError(f"sweep directory {folder} is not empty, and no sweep")
    _make(folder)
    return folder


def _make(folder: Path) -> bool:
    """Make a folder with its subfolders; return False if it existed, or another process has just made it."""
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

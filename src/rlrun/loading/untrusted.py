"""Open a run directory that another person may have made: check its files, and limit the imports of its config."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlrun import config as configuration
from rlrun.config.interpolation import plain
from rlrun.config.reading import ROOTS, reached, resolve_texts
from rlrun.config.schema import KINDS, SETTINGS, check_kinds
from rlrun.core.errors import ConfigError, RunDirError
from rlrun.runs.directory import RunDir
from rlrun.runs.files import read_json, require_own_database, require_own_file
from rlrun.runs.learners import places_in
from rlrun.security import trust

REQUIRED = ("seed", "device", "threads", "precision", "stop")  # read before anything is built
READ = (*REQUIRED, "learners")  # runs of before have no learners


class Arrival(NamedTuple):
    """A run directory, and what it says."""

    directory: RunDir
    config: DictConfig  # unresolved, as it was saved
    about: dict[str, Any]  # the manifest


@contextmanager
def arrived(run: Path | str, packages: Iterable[str] = (), typed: Mapping[str, Any] | None = None) -> Iterator[Arrival]:
    """Open a run; as long as the `with` block lasts, configs import only what `rlrun.security.trust` admits.

    Args:
        run: a run directory.
        packages: what its config may import beyond that, as `--trust` names it.
        typed: config key -> value, what the user typed; the names among the values are admitted, too.

    Raises:
        RequestError: there is no such run, its config or manifest is damaged, or a package is not there.
    """
    packages = trust.require_of_use(packages)
    directory = RunDir.open(run)
    about = read_json(directory.manifest)
    _check_about(about, directory.manifest)
    with trust.limited(packages, run=directory.path, project=about.get("project"), typed=typed):
        try:
            config = configuration.load(directory.config)
            _check(config, directory.config)
        except RecursionError as error:
            raise ConfigError(f"{directory.config} is damaged: a text in it is nested too deeply") from error
        yield Arrival(directory, config, about)


def _check_about(about: Any, path: Path) -> None:
    if not isinstance(about, dict):
        raise RunDirError(f"{path} is damaged: wanted keys with values, got a {type(about).__name__}")
    past = about.get("resumed", [])
    for record in (about, *past) if isinstance(past, list) else (None,):
        if not isinstance(record, dict) or not isinstance(record.get("packages", {}), dict):
            raise RunDirError(f"{path} is damaged: it lacks what every run records")


def _check(config: DictConfig, path: Path) -> None:
    """Refuse values of the wrong kind, also where they come out of interpolations."""
    tree = plain(config)
    for name in REQUIRED:
        if name not in tree:
            raise ConfigError(f"{path} is damaged: it has no '{name}'")
    check_kinds(tree)
    resolve_texts(config, reached(config, (*ROOTS, "agent", "env")))
    try:
        known = {key: OmegaConf.select(config, key) for key in KINDS if key.split(".")[0] in (*READ, *SETTINGS)}
    except OmegaConfBaseException as error:
        raise ConfigError(f"{path}: {str(error).splitlines()[0]}") from error
    resolved = OmegaConf.create()
    for key, value in known.items():
        if value is not None:
            OmegaConf.update(resolved, key, value, force_add=True)
    check_kinds(resolved)


def require_own_folder(folder: Path) -> None:
    """Refuse a link to somewhere else, or no folder, in place of a folder of the run.

    Raises:
        RunDirError: it is one.
    """
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise RunDirError(f"{folder} is a link or a file; rlrun writes into folders and files of its own only")


def require_own_files(run: RunDir) -> None:
    """Refuse to write into what is no plain file of the run itself: a link could lead to any file of the user's.

    Raises:
        RunDirError: naming the first.
    """
    folders = (run.exports, run.videos, run.tensorboard, run.mlflow)
    for folder in (run.checkpoints, run.wandb, *folders):
        require_own_folder(folder)
    require_own_database(run.mlflow / "mlflow.db")
    for path in filter(Path.is_symlink, (run.config, run.overrides, run.manifest)):
        require_own_file(path)  # its content may go to a service
    if (settings := run.wandb / "settings").exists():
        raise RunDirError(f"{settings} cannot be used: W&B would take its settings from it; delete the file")
    listed = [folder.iterdir() for folder in (*places_in(run.checkpoints), *folders) if folder.is_dir()]
    for path in (run.metrics, run.log, *sorted(chain.from_iterable(listed))):
        if path.is_symlink() or not path.is_dir():
            require_own_file(path)

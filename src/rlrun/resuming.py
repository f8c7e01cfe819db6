"""Go on with a run that ended early, or further than it was meant to go; the twin of `rlrun resume`.

What a checkpoint holds is taken back exactly. Environments are not in it: every lane begins a new
episode, so a resumed run is called `approximate` in its manifest and its log.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rlrun import config as configuration
from rlrun.config import Composed
from rlrun.config.merging import apply
from rlrun.config.places import add_to_path
from rlrun.config.schema import check_kinds
from rlrun.config.words import Word, parse
from rlrun.errors import ConfigError, RunDirError
from rlrun.experiment import Experiment, Result
from rlrun.files import read_json
from rlrun.presence import require_idle, take_over
from rlrun.rundir import RunDir
from rlrun.storage import load

CHANGEABLE = ("stop", "evaluation", "checkpoint", "logger", "log", "device", "threads")

_messages = logging.getLogger("rlrun")


def resume(run: Path | str, words: Iterable[str] = ()) -> Result:
    """Go on with a run from its newest good checkpoint; without any, begin it anew in the same folder.

    Args:
        run: a run directory. A run that is finished is left as it is, unless a word raises its budget.
        words: overrides of the keys that may change: `["stop.env_steps=200_000"]`; they are kept in the run.

    Raises:
        RequestError: no such run, a process works on it, a key may not change, or every checkpoint is damaged.
        RlrunError: the run failed; `status.json` says so.
    """
    directory = RunDir.open(run)
    require_idle(directory)
    before, words = _lines(directory.overrides), list(words)
    given = parse(words)
    config = changed(configuration.load(directory.config), given, before)
    if finished(directory, config, given):
        return Result(directory.path, read_json(directory.summary), config, None)
    about = read_json(directory.manifest)
    project = Path(about.get("project", Path.cwd()))
    add_to_path(project)  # where the user's classes live
    found = newest(directory)
    experiment = Experiment(Composed(config, [word.text for word in parse([*before, *words])], {}, [], project))
    if found is not None:
        experiment.restore(found[1], found[0])
    take_over(directory)
    origin = None if found is None else found[0].name
    _record(directory, experiment, about, {"words": [word.text for word in given], "checkpoint": origin})
    return Result(directory.path, experiment.train(directory), config, experiment.trainer)


def changed(config: DictConfig, words: Sequence[Word], before: Sequence[str] = ()) -> DictConfig:
    """Return a run's config with the words applied that a resume allows.

    Raises:
        ConfigError: a word changes what makes the run what it is, or is wrong.
    """
    config = config.copy()
    OmegaConf.set_struct(config, True)
    for word in words:
        if word.key.split(".")[0] not in CHANGEABLE:
            request = shlex.join(["rlrun", "train", *(other.text for other in parse([*before, word.text]))])
            raise ConfigError(
                f"{word.key} cannot change when a run is resumed, only {_list(CHANGEABLE)} can; "
                f"a new run takes it: {request}"
            )
        if word.sign:
            raise ConfigError(f"'{word.text}': a resumed run takes KEY=VALUE; no key is added or deleted")
        apply(config, word, [])
    for key, value in check_kinds(config).items():
        OmegaConf.update(config, key, value, merge=False)
    return config


def finished(run: RunDir, config: DictConfig, words: Sequence[Word] = ()) -> bool:
    """Tell whether a run has reached its end, also by the budget that words give it."""
    if run.read_status()["status"] != "completed":
        return False
    summary = read_json(run.summary)
    if summary["stopped_by"] is None or not any(word.key.split(".")[0] == "stop" for word in words):
        return True  # of a loader that has ended there is nothing more to come
    reached = {name: summary[name] for name in ("env_steps", "updates", "seconds")}
    reached["mean_return"] = (summary["evaluation"] or {}).get("mean_return")
    limits: Any = OmegaConf.to_container(config.stop, resolve=True)
    pairs = [(reached.get(name), limit) for name, limit in limits.items()]
    return any(value is not None and limit is not None and value >= limit for value, limit in pairs)


def newest(run: RunDir) -> tuple[Path, dict[str, Any]] | None:
    """Return the newest checkpoint that is not damaged, and its states; None where none was ever made.

    Raises:
        RunDirError: all are damaged, or they are gone.
    """
    held = run.checkpoint_dirs()
    damaged = []
    for where in reversed(held):
        try:
            states = load(where)
        except RunDirError as error:
            damaged.append(str(error))
            continue
        for message in damaged:
            _messages.warning("%s; going on from checkpoint %s", message, where.name)
        return where, states
    if held:
        raise RunDirError(f"none of the {len(held)} checkpoints can be read; of the newest: {damaged[0]}")
    if run.read_status()["status"] == "completed" or (run.checkpoints / "latest").is_file():
        raise RunDirError(f"{run.path} has no checkpoint any more to go on from")
    return None


def _record(run: RunDir, experiment: Experiment, about: dict[str, Any], origin: dict[str, Any]) -> None:
    """Note in the run's own files who goes on with it, from where, and how exactly."""
    now = experiment.describe()
    names = ("command", "created", "git", "python", "packages", "platform", "host", "device", "threads")
    about = {**about, "resumed": [*about.get("resumed", []), {name: now[name] for name in names} | origin]}
    if origin["checkpoint"] is not None:
        about["resume"] = "approximate"
        run.note(f"resume: approximate: from checkpoint {origin['checkpoint']}; every lane begins a new episode")
    else:
        run.note("resume: begun anew; there was no checkpoint")
    run.start(config=OmegaConf.to_yaml(experiment.config), overrides=experiment.composed.words, manifest=about)


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []


def _list(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"

"""Settings of a search: fixed overrides, searched dimensions, seeds, and the jobs of a trial.

The keys of `conf/sweep/optuna.yaml` are the attributes of `Optuna`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlrun import config as configuration
from rlrun.config.expansion import Job, job_of
from rlrun.config.interpolation import plain
from rlrun.config.overrides import parse
from rlrun.config.schema import BLOCK, NULL, TRUTH, Kind, converted, either, list_of, one_of, whole
from rlrun.core.errors import ConfigError, MissingExtra, RunDirError, did_you_mean
from rlrun.core.files import counted, json_text, read_json, write_text
from rlrun.runs.progress import RETURN, VALIDATION
from rlrun.runs.trust import remember
from rlrun.sweep.directory import require_apart
from rlrun.sweep.search.space import Dimension, chosen_in, divide, grid

ABOUT = "search.json"
MAY_GROW = ("trials", "top", "fresh_seeds")  # settings that may be raised after a search has begun
MOST_SEEDS = 1_000
SUMMARY = ("env_steps", "updates", "episodes", "seconds", "env_steps_per_second", "objective")  # in summary.json
JUDGES = ("validation", "evaluation")  # callbacks that give an objective


def _seeds(value: Any) -> Any:
    if not isinstance(value, list):
        value = whole(1).convert(value)
    seeds = [whole().convert(seed) for seed in value] if isinstance(value, list) else range(value)
    if not 0 < len(seeds) <= MOST_SEEDS or len(set(seeds)) < len(seeds):
        raise ValueError
    return value


def _names(value: Any) -> Any:
    names = value if isinstance(value, list) else [value]
    if not names or not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise ValueError
    return value


DIRECTION = one_of("maximize", "minimize")
KINDS = {
    **dict.fromkeys(("trials", "compare", "fresh_seeds"), whole(1)),
    **dict.fromkeys(("startup", "seed", "top"), whole()),
    "warmup": either(whole(), NULL),
    "start": TRUTH,
    "params": BLOCK,
    "sampler": one_of("tpe", "grid", "random", "nsga2"),
    "pruner": one_of("auto", "median", "successive_halving", "hyperband", "none"),
    "score": one_of("mean", "last", "best"),
    "over_seeds": one_of("mean", "iqm", "worst"),
    "seeds": Kind("a whole number from 1, or a list of different seeds", _seeds),
    "objective": either(NULL, Kind("the name of a metric, or a list of several", _names)),
    "direction": either(NULL, DIRECTION, list_of("a list of these", DIRECTION)),
}


@dataclass(frozen=True)
class Optuna:
    """Settings of a search with Optuna; `conf/sweep/optuna.yaml` explains each.

    Raises:
        ConfigError: a value is invalid, or does not go with another.
        MissingExtra: Optuna is not installed.
    """

    trials: int = 30
    params: Mapping[str, Any] = field(default_factory=dict)
    sampler: str = "tpe"
    start: bool = True
    startup: int = 10
    seeds: int | list[int] = 1
    seed: int = 0
    objective: str | list[str] | None = None
    direction: str | list[str] | None = None
    score: str = "mean"
    over_seeds: str = "mean"
    pruner: str = "auto"
    warmup: int | None = None
    compare: int = 5
    top: int = 3
    fresh_seeds: int = 5

    def __post_init__(self) -> None:
        self.package()
        for name, kind in KINDS.items():
            object.__setattr__(self, name, converted(f"sweep.{name}", getattr(self, name), kind))
        count = len(self.objectives)
        if len(self.directions) != count:
            raise ConfigError(f"sweep.direction: {count} objectives have one direction each, or one for all")
        if count > 1 and self.pruner not in ("auto", "none"):
            raise ConfigError(f"sweep.pruner={self.pruner}: of several objectives none says which trial to leave early")
        if count == 1 and self.sampler == "nsga2":
            raise ConfigError("sweep.sampler=nsga2: it is for several objectives; tpe is for one")

    def package(self) -> Any:
        """Return Optuna, whose log level is set to errors."""
        try:
            import optuna
        except ImportError:
            raise MissingExtra("sweep=optuna", "optuna", "optuna") from None
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        return optuna

    @property
    def objectives(self) -> list[str]:
        objective = self.objective or RETURN
        return [objective] if isinstance(objective, str) else list(objective)

    @property
    def directions(self) -> list[str]:
        """`maximize` or `minimize` for each objective."""
        direction = self.direction or "maximize"
        return [direction] * len(self.objectives) if isinstance(direction, str) else list(direction)

    @property
    def signs(self) -> list[float]:
        """A factor for each objective, -1 or 1, such that smaller products are better."""
        return [-1.0 if direction == "maximize" else 1.0 for direction in self.directions]

    @property
    def prunes(self) -> bool:
        """Whether trials are stopped early."""
        return self.pruner != "none" and len(self.objectives) == 1


class SearchPlan:
    """A search as the user requested it.

    Args:
        overrides: of the jobs; those with several values are searched.
        settings: of the search.
        config_dir: the user's own conf folder.

    Raises:
        ConfigError: an override is wrong, or none has several values.
    """

    def __init__(
        self,
        overrides: Iterable[str],
        settings: Optuna,
        config_dir: Path | None = None,
    ) -> None:
        self.overrides = [override.strip() for override in overrides]
        self.settings = settings
        self.config_dir = config_dir
        fixed, self.dimensions = divide(self.overrides, settings.params, config_dir)
        self.fixed = [override.text for override in parse(fixed) if override.key != "seed"]
        seeds = [override.value for override in parse(fixed) if override.key == "seed"]
        if seeds and not isinstance(seeds[0], int):
            raise ConfigError(f"seed: wanted a whole number from 0, got {seeds[0]!r}")
        first = seeds[0] if seeds else 0
        self.seeds = [*settings.seeds] if isinstance(settings.seeds, list) else [*range(first, first + settings.seeds)]
        after = max(self.seeds) + 1
        self.fresh = list(range(after, after + settings.fresh_seeds))
        self.points = grid(self.dimensions) if settings.sampler == "grid" else []

    @property
    def trials(self) -> int:
        """Number of trials."""
        return min(self.settings.trials, len(self.points)) if self.points else self.settings.trials

    @property
    def preset(self) -> str | None:
        """The preset of the overrides that all jobs share."""
        return self._base.preset

    @property
    def sample(self) -> list[Job]:
        """Jobs like those of a trial, with the fixed overrides only, to estimate resources; they are never run."""
        return [Job("", tuple(self.fixed), "") for _ in self.seeds]

    def overrides_of(self, values: Mapping[str, Any]) -> list[str]:
        """Return the overrides of a trial.

        values: name of each dimension -> value.
        """
        return [dimension.override(values[dimension.name]) for dimension in self.dimensions]

    def jobs(self, values: Mapping[str, Any], seeds: Sequence[int]) -> list[Job]:
        """Return a job for each seed.

        Raises:
            ConfigError: the config with these values is wrong.
        """
        chosen = self.overrides_of(values)
        overrides = [[*chosen, f"seed={seed}"] for seed in seeds]
        return [job_of(self._compose([*self.fixed, *chosen]), " ".join(chosen)) for chosen in overrides]

    def command(self, values: Mapping[str, Any]) -> str:
        """Return the command that trains with the values of a trial."""
        return f"rlrun train {shlex.join([*self.fixed, *self.overrides_of(values)])}"

    @cached_property
    def start(self) -> dict[str, Any]:
        """The config's own values of the dimensions, as far as these are in the search space."""
        composed, values = self._base, {}
        for dimension in self.dimensions:
            try:
                values[dimension.key] = OmegaConf.select(composed.config, dimension.key)
            except OmegaConfBaseException:  # the value is an object
                continue
        chosen = {dimension.name: chosen_in(values, composed.choices, dimension) for dimension in self.dimensions}
        return {name: value for name, value in chosen.items() if value is not None}

    @cached_property
    def evaluations(self) -> int | None:
        """Number of evaluations of a run, if its config determines it."""
        config = self._base.config
        every, steps = config.evaluation.every, config.stop.env_steps or config.stop.updates
        return max(1, -(-int(steps) // int(every))) if every and steps else None

    def check(self) -> list[Job]:
        """Return jobs that cover all choices or the bounds of each dimension; complete and check the objectives.

        Raises:
            ConfigError: naming the wrong key, or what prevents the search.
        """
        ends = [
            dimension.choices or (dimension.low, dimension.high, dimension.middle()) for dimension in self.dimensions
        ]
        jobs: dict[str, Job] = {}
        for at in range(max(map(len, ends))):
            values = {of.name: options[at % len(options)] for of, options in zip(self.dimensions, ends, strict=True)}
            try:
                jobs |= {job.key: job for job in self.jobs(values, self.seeds)}
            except ConfigError as error:
                raise ConfigError(f"{error}{self._whole_hint(str(error))}") from error
        require_apart(jobs.values())
        self.settings = self._judged(self.settings)
        reports = [name for name in self.settings.objectives if name.startswith(("evaluation/", VALIDATION))]
        if reports and not self._base.config.evaluation.every:
            raise ConfigError(f"sweep.objective: evaluation.every=0 leaves no {reports[0]} to compare")
        self._require_objectives()
        return [*jobs.values()]

    def _whole_hint(self, message: str) -> str:
        """Return a hint if an error says that a key takes whole numbers, but its dimension has real numbers."""
        places = (at for at in self.dimensions if message.startswith(f"{at.key}: wanted a whole number"))
        real = next((at for at in places if not at.choices and not at.whole and at.step is None), None)
        return "" if real is None else f"; {real.key}=int(interval({real.low:g},{real.high:g})) has whole numbers alone"

    def _require_objectives(self) -> None:
        """Refuse an unknown objective, unless the config has callbacks of the user, which may log any metric."""
        callbacks = plain(self._base.config).get("callbacks") or {}
        targets = (part.get("_target_") for part in callbacks.values() if isinstance(part, Mapping))
        own = any(not str(target).startswith("rlrun.") for target in targets if target is not None)
        for name in () if own else self.settings.objectives:
            losses = [f"loss/{callback}" for callback in callbacks]
            known = losses if name.startswith("loss/") else [*SUMMARY, RETURN, "episode/return", "episode/length"]
            if name not in known and ("/" not in name or name.startswith("loss/")):
                raise ConfigError(f"sweep.objective: no run has a metric '{name}'{did_you_mean(name, known)}")

    def describe(self) -> str:
        """Return a description of the search space, and the largest number of jobs."""
        settings, trials = self.settings, self.trials
        lines = [f"{dimension.key}: {_describe(dimension)}" for dimension in self.dimensions]
        again = min(settings.top, trials)
        lines.append(
            f"{counted(trials, 'trial')} by {settings.sampler}, {counted(len(self.seeds), 'seed')} each: "
            f"{counted(trials * len(self.seeds), 'job')}"
        )
        if again:
            fresh = counted(len(self.fresh), "fresh seed")
            lines.append(f"the best {again} again with {fresh}: {counted(again * len(self.fresh), 'job')}")
        return "\n".join(lines)

    def save(self, folder: Path) -> None:
        """Write search.json into a sweep's folder; later calls may raise the number of trials, but change nothing else.

        Raises:
            RunDirError: the folder contains another search, or a sweep without a search.
        """
        path = folder / ABOUT
        if path.exists():
            overrides, settings = _noted(path)
            theirs = {"overrides": sorted(overrides), **asdict(settings)}
            ours = {"overrides": sorted(self.overrides), **asdict(self.settings)}
            name = next((name for name in ours if name not in MAY_GROW and ours[name] != theirs[name]), None)
            if name is not None:
                grow = ", ".join(f"sweep.{key}" for key in MAY_GROW)
                raise RunDirError(
                    f"{folder} holds a search with other {name}; only {grow} may change; name another folder"
                )
        text = json_text({"overrides": self.overrides, "sweep": asdict(self.settings)})
        remember(text)
        write_text(path, text)

    @classmethod
    def load(cls, folder: Path, config_dir: Path | None = None) -> SearchPlan:
        """Return the search of a sweep's folder.

        Raises:
            RunDirError: search.json is missing or damaged.
        """
        overrides, settings = _noted(folder / ABOUT)
        try:
            return cls(overrides, settings, config_dir)
        except ConfigError as error:
            raise RunDirError(f"{folder / ABOUT} is damaged: {error}") from error

    def _judged(self, settings: Optuna) -> Optuna:
        """Return settings completed with the objective by which runs are judged, and its direction."""
        objective, direction = settings.objective or RETURN, settings.direction or "maximize"
        validation, evaluation = (OmegaConf.select(self._base.config, f"callbacks.{name}") for name in JUDGES)
        returns = evaluation is not None and self._base.config.evaluation.every
        if settings.objective is None and validation is not None and not returns:
            objective = f"{VALIDATION}{validation.objective}"
            direction = settings.direction or OmegaConf.select(validation, "direction") or direction
        return replace(settings, objective=objective, direction=direction)

    @cached_property
    def _base(self) -> configuration.Composed:
        return self._compose(self.fixed)

    def _compose(self, overrides: Sequence[str]) -> configuration.Composed:
        return self._composer.compose(overrides)

    @cached_property
    def _composer(self) -> configuration.Composer:
        return configuration.Composer(self.config_dir)


def _noted(path: Path) -> tuple[list[str], Optuna]:
    """Return the overrides and settings in search.json.

    Raises:
        RunDirError: the file is missing or damaged.
    """
    note = read_json(path)
    try:
        overrides, settings = [str(override) for override in note["overrides"]], note["sweep"]
        if overrides != note["overrides"] or not set(settings) <= {field.name for field in fields(Optuna)}:
            raise ValueError
        return overrides, Optuna(**settings)
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        message = str(error) if isinstance(error, ConfigError) else "it is not a file of a search"
        raise RunDirError(f"{path} is damaged: {message}") from error


def _describe(dimension: Dimension) -> str:
    if dimension.choices:
        return f"one of {', '.join(dimension.choices)}"
    kind = "a whole number" if dimension.whole else "a number"
    by = f" by {dimension.step:g}" if dimension.step not in (None, 1) else ""
    return f"{kind} from {dimension.low:g} to {dimension.high:g}{by}{', by its logarithm' if dimension.log else ''}"

"""What a search is told: the keys of `conf/sweep/optuna.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rlrun.errors import ConfigError, MissingExtra, did_you_mean

SAMPLERS = ("tpe", "cmaes", "grid", "random", "nsga2")
PRUNERS = ("auto", "median", "successive_halving", "hyperband", "none")
DIRECTIONS = ("maximise", "minimise")
SCORES = ("mean", "last", "best")
OVER_SEEDS = ("mean", "iqm", "worst")
WORDS = {"sampler": SAMPLERS, "pruner": PRUNERS, "score": SCORES, "over_seeds": OVER_SEEDS}
LEAST = {"trials": 1, "startup": 0, "seed": 0, "compare": 1, "top": 0, "fresh_seeds": 1}
MAY_GROW = ("trials", "top", "fresh_seeds")  # of a search that was begun
MOST_SEEDS = 1_000


@dataclass(frozen=True)
class Optuna:
    """How a search chooses, compares and answers; `conf/sweep/optuna.yaml` has a line on each.

    Raises:
        ConfigError: a value is none that the key takes, or does not go with another.
        MissingExtra: Optuna is not installed, or what the sampler needs beside it.
    """

    trials: int = 30
    params: Mapping[str, Any] = field(default_factory=dict)
    sampler: str = "tpe"
    start: bool = True
    startup: int = 10
    seeds: int | list[int] = 1
    seed: int = 0
    objective: str | list[str] = "evaluation/mean_return"
    direction: str | list[str] = "maximise"
    score: str = "mean"
    over_seeds: str = "mean"
    pruner: str = "auto"
    warmup: int | None = None
    compare: int = 5
    top: int = 3
    fresh_seeds: int = 5

    def __post_init__(self) -> None:
        self.package()
        for name, choices in WORDS.items():
            _require_choice(name, getattr(self, name), choices)
        for name, least in LEAST.items():
            _require(name, _is_whole(getattr(self, name), least), f"a whole number from {least}", getattr(self, name))
        fine = self.warmup is None or _is_whole(self.warmup, 0)
        _require("warmup", fine, "a whole number from 0, or null", self.warmup)
        _require("start", isinstance(self.start, bool), "true or false", self.start)
        _require("params", isinstance(self.params, Mapping), "keys with values", self.params)
        self._check_seeds()
        self._check_objectives()

    def package(self) -> Any:
        """Return Optuna, which says nothing but errors."""
        try:
            import optuna

            if self.sampler == "cmaes":
                import cmaes  # noqa: F401
        except ImportError as error:
            raise MissingExtra("sweep=optuna", error.name or "optuna", "optuna") from None
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        return optuna

    @property
    def objectives(self) -> list[str]:
        return [self.objective] if isinstance(self.objective, str) else list(self.objective)

    @property
    def directions(self) -> list[str]:
        """One for each objective."""
        return [self.direction] * len(self.objectives) if isinstance(self.direction, str) else list(self.direction)

    @property
    def prunes(self) -> bool:
        """Whether trials are left early."""
        return self.pruner != "none" and len(self.objectives) == 1

    def seeds_from(self, first: int) -> list[int]:
        """Return the seeds of every trial; `first` is that of the words."""
        return list(range(first, first + self.seeds)) if isinstance(self.seeds, int) else list(self.seeds)

    def differs_from(self, other: Optuna) -> str | None:
        """Return a key that another search on the same study would have to share, and does not."""
        ours, theirs = asdict(self), asdict(other)
        return next((name for name in ours if name not in MAY_GROW and ours[name] != theirs[name]), None)

    def _check_seeds(self) -> None:
        wanted = "a whole number from 1, or a list of different seeds"
        if isinstance(self.seeds, list):
            fine = bool(self.seeds) and all(_is_whole(seed, 0) for seed in self.seeds)
            _require("seeds", fine and len(set(self.seeds)) == len(self.seeds) <= MOST_SEEDS, wanted, self.seeds)
        else:
            _require("seeds", _is_whole(self.seeds, 1) and self.seeds <= MOST_SEEDS, wanted, self.seeds)

    def _check_objectives(self) -> None:
        names: Any = self.objectives if isinstance(self.objective, str | list) else None
        fine = bool(names) and all(isinstance(name, str) and name for name in names) and len(set(names)) == len(names)
        _require("objective", fine, "the name of a metric, or a list of several", self.objective)
        _require("direction", isinstance(self.direction, str | list), "one of maximise, minimise", self.direction)
        for direction in self.directions:
            _require_choice("direction", direction, DIRECTIONS)
        if len(self.directions) != len(names):
            raise ConfigError(f"sweep.direction: {len(names)} objectives have one direction each, or one for all")
        if len(names) > 1 and self.sampler == "cmaes":
            raise ConfigError("sweep.sampler=cmaes: it has one objective; nsga2 and tpe take several")
        if len(names) > 1 and self.pruner not in ("auto", "none"):
            raise ConfigError(f"sweep.pruner={self.pruner}: of several objectives none says which trial to leave early")
        if len(names) == 1 and self.sampler == "nsga2":
            raise ConfigError("sweep.sampler=nsga2: it is for several objectives; tpe and cmaes are for one")


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _require_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    near = did_you_mean(value, choices) if isinstance(value, str) else ""
    _require(name, isinstance(value, str) and value in choices, f"one of {', '.join(choices)}", value, near)


def _require(name: str, fine: bool, wanted: str, value: Any, near: str = "") -> None:
    if not fine:
        raise ConfigError(f"sweep.{name}: wanted {wanted}, got {value!r}{near}")

"""Optuna's study in a journal file, written by one process at a time, and the results of runs as numbers."""

import math
import os
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import numpy as np

from rlrun.core.errors import RlrunError, RunDirError
from rlrun.core.files import known, open_own, reason
from rlrun.runs.directory import RunDir
from rlrun.runs.progress import number_of, progress, values_of
from rlrun.sweep.search.settings import Optuna, SearchPlan

State = Literal["complete", "pruned", "failed", "running", "waiting"]
STATES: dict[str, State] = {
    "COMPLETE": "complete",
    "PRUNED": "pruned",
    "FAIL": "failed",
    "RUNNING": "running",
    "WAITING": "waiting",
}
NAME = "search"
AGAIN = "again"  # attribute of a trial that repeats a failed one: the number of the failed trial
SAMPLES = 10_000  # samples of a bootstrap
SURE = 0.95  # confidence level of an interval


class Trial(NamedTuple):
    """The values of a trial by name, and its results, one number for each objective, if known."""

    number: int
    values: dict[str, Any]
    state: State
    results: list[float]


class Study:
    """The trials of a search, and the sampler of further ones.

    The values of a trial depend only on the search's seed, the trial's number, and the results of earlier trials. So a
    study that is opened again continues in the same way.

    Args:
        path: of the journal; an incomplete last line of a killed process is removed.
        plan: of the search.

    Raises:
        RunDirError: the journal is damaged, or belongs to another search.
    """

    def __init__(self, path: Path, plan: SearchPlan) -> None:
        self.path = path
        self.plan = plan
        self._optuna = plan.settings.package()
        self._directions = [name.replace("mise", "mize") for name in plan.settings.directions]  # Optuna's spelling
        self._mend()
        self._study = self._guarded(self._opened)
        self._handles: dict[int, Any] = {}
        if [direction.name.lower() for direction in self._study.directions] != self._directions:
            raise RunDirError(f"{path} is of a search with other objectives")
        if not self._study.trials and plan.settings.start and not plan.points:
            self._enqueue(plan.start)

    @property
    def trials(self) -> list[Trial]:
        """All trials, in the order of their creation."""
        return [self._trial(frozen) for frozen in self._frozen()]

    @property
    def asked(self) -> int:
        """Number of created trials, without waiting ones and failed ones that were repeated."""
        return sum(1 for trial in self._frozen() if trial.state.name != "WAITING") - len(self._again())

    @property
    def waits(self) -> bool:
        """Whether values are queued for the next trial."""
        return any(trial.state.name == "WAITING" for trial in self._frozen())

    def ask(self) -> Trial:
        """Create a new trial."""
        trials = self._frozen()
        number = next((trial.number for trial in trials if trial.state.name == "WAITING"), len(trials))
        if number == len(trials) and self.plan.points:
            self._enqueue(self.plan.points[self.asked % len(self.plan.points)])
        return self._suggested(number, self._study.ask)

    def reopen(self, number: int) -> Trial:
        """Return a trial of an earlier process; missing values are sampled now."""
        known = self._frozen()[number]._trial_id
        return self._suggested(number, lambda: self._optuna.trial.Trial(self._study, known))

    def report(self, number: int, step: int, value: float) -> None:
        """Record the score of a trial at a step (from 1), unless it is recorded already."""
        if step not in self._frozen()[number].intermediate_values:
            self._handles[number].report(value, step)

    def reports(self, number: int) -> int:
        """Return the number of recorded steps of a trial."""
        return len(self._frozen()[number].intermediate_values)

    def is_hopeless(self, number: int) -> bool:
        """Return True if the pruner would stop a trial, by its newest report."""
        return bool(self._handles[number].should_prune())

    def tell(self, number: int, results: list[float] | None, state: State) -> None:
        """Record the end of a trial; call it once for each."""
        kinds = {name: kind for kind, name in STATES.items()}
        self._study.tell(number, results, state=self._optuna.trial.TrialState[kinds[state]])
        self._handles.pop(number, None)

    def try_again(self, trial: Trial) -> None:
        """Queue the values of a failed trial for the next one, which replaces it."""
        self._enqueue(trial.values, {AGAIN: trial.number})

    def was_tried_again(self, number: int) -> bool:
        return number in self._again()

    def best(self) -> list[Trial]:
        """Return the complete trials, best first; with several objectives, those of the Pareto front."""
        signs = self.plan.settings.signs
        complete = [trial for trial in self.trials if trial.state == "complete"]
        if len(signs) > 1:
            front = {trial.number for trial in self._study.best_trials} if complete else set()
            complete = [trial for trial in complete if trial.number in front]
        ordered = sorted(
            complete, key=lambda trial: [sign * value for sign, value in zip(signs, trial.results, strict=True)]
        )
        by_overrides: dict[tuple[str, ...], Trial] = {}
        for trial in ordered:  # several trials may have the same values
            by_overrides.setdefault(tuple(self.plan.overrides_of(trial.values)), trial)
        return list(by_overrides.values())

    def _opened(self) -> Any:
        storages = self._optuna.storages
        # The journal needs no lock: the process that opens a study holds the lock of the search.
        no_lock: Any = SimpleNamespace(acquire=lambda: True, release=lambda: None)
        backend = storages.journal.JournalFileBackend(str(self.path), lock_obj=no_lock)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            storage, named = storages.JournalStorage(backend), {"study_name": NAME, "pruner": self._pruner()}
            if not storage.get_all_studies():
                return self._optuna.create_study(storage=storage, directions=self._directions, **named)
            return self._optuna.load_study(storage=storage, **named)

    def _guarded(self, work: Callable[[], Any]) -> Any:
        """Call a function that reads the journal; raise RunDirError if the journal is damaged."""
        try:
            return work()
        except RlrunError:
            raise
        except Exception as error:
            raise RunDirError(f"{self.path} is damaged: {type(error).__name__}: {error}") from error

    def _mend(self) -> None:
        """Remove a last line that a killed process did not complete."""
        try:
            with os.fdopen(open_own(self.path), "r+b") as file:
                file.truncate(file.read().rfind(b"\n") + 1)
        except OSError as error:
            raise RunDirError(f"{self.path} cannot be used: {reason(error)}") from error

    def _suggested(self, number: int, begin: Callable[[], Any]) -> Trial:
        """Return a trial with a value for each dimension; values that were chosen before stay."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about features that Optuna calls experimental
            self._study.sampler = self._sampler(self._seed(number))
            handle, values = self._guarded(begin), {}
            _ = handle.relative_params  # joint samples of all dimensions are drawn here
            for place, dimension in enumerate(self.plan.dimensions, start=1):  # each independent of samples before it
                self._study.sampler = self._sampler(self._seed(number, place))
                values[dimension.name] = self._guarded(partial(dimension.suggest, handle))
        self._handles[number] = handle
        return Trial(number, values, "running", [])

    def _seed(self, number: int, place: int = 0) -> int:
        return int(np.random.SeedSequence([self.plan.settings.seed, number, place]).generate_state(1)[0])

    def _frozen(self) -> list[Any]:
        trials: list[Any] = self._study.get_trials(deepcopy=False)
        return trials

    def _trial(self, frozen: Any) -> Trial:
        values, state = dict(frozen.params), STATES[frozen.state.name]
        by_name = {dimension.name: dimension for dimension in self.plan.dimensions}
        fine = all(name in by_name and by_name[name].takes(value) for name, value in values.items())
        whole = set(values) == set(by_name) or state in ("running", "waiting")
        if not fine or not whole:
            raise RunDirError(f"{self.path} is damaged: trial {frozen.number} has values that the search has not")
        results = [float(value) for value in frozen.values or ()] if state == "complete" else []
        return Trial(frozen.number, values, state, results)

    def _again(self) -> set[Any]:
        return {trial.user_attrs[AGAIN] for trial in self._frozen() if isinstance(trial.user_attrs.get(AGAIN), int)}

    def _enqueue(self, values: Mapping[str, Any], notes: Mapping[str, Any] | None = None) -> None:
        if values:
            self._study.enqueue_trial(dict(values), user_attrs=dict(notes or {}))

    def _sampler(self, seed: int) -> Any:
        samplers, config = self._optuna.samplers, self.plan.settings
        if config.sampler == "tpe":  # `constant_liar` counts running trials as bad, so two do not try the same values
            return samplers.TPESampler(seed=seed, n_startup_trials=config.startup, constant_liar=True)
        if config.sampler == "nsga2":
            population = min(50, max(4, config.trials // 5))  # leaves room for at least five generations
            return samplers.NSGAIISampler(seed=seed, population_size=population)
        return samplers.RandomSampler(seed=seed)

    def _pruner(self) -> Any:
        pruners, config = self._optuna.pruners, self.plan.settings
        if not config.prunes:
            return pruners.NopPruner()
        share = 2 if config.pruner in ("auto", "median") else 3  # an early median would prune runs that learn late
        wait = max(1, (self.plan.evaluations or 6) // share) if config.warmup is None else config.warmup
        first = max(1, wait)
        if config.pruner == "successive_halving":
            return pruners.SuccessiveHalvingPruner(min_resource=first, reduction_factor=3)
        if config.pruner == "hyperband":
            known = self.plan.evaluations
            most = "auto" if known is None else max(first, known)
            return pruners.HyperbandPruner(min_resource=first, max_resource=most, reduction_factor=3)
        return pruners.MedianPruner(n_startup_trials=config.compare, n_warmup_steps=wait, n_min_trials=config.compare)


def numbers_of(run: RunDir) -> set[str]:
    """Return the names of a run's numbers in its summary and newest metrics."""
    summary = {name for name, value in known(run.summary).items() if number_of(value) is not None}
    return summary | set(progress(run.metrics))


def of_run(run: RunDir, settings: Optuna, at: int) -> float:
    """Return the result of a completed run for an objective; NaN if it has none.

    at: index of the objective.
    """
    name = settings.objectives[at]
    value = number_of(known(run.summary).get(name))
    return of_values(values_of(run.metrics, name), settings, at) if value is None else value


def of_values(values: list[float], settings: Optuna, at: int) -> float:
    """Return the `mean`, `last` or `best` of a metric's values; NaN if there is none, or one is NaN."""
    if not values or any(map(math.isnan, values)):
        return math.nan
    if settings.score == "mean":
        return sum(values) / len(values)
    sign = settings.signs[at]
    return values[-1] if settings.score == "last" else sign * min(sign * value for value in values)


def over_seeds(values: list[float], settings: Optuna, at: int) -> float:
    """Return the `mean`, `iqm` (mean of the middle half) or `worst` of the results of a trial's runs."""
    if any(map(math.isnan, values)):
        return math.nan
    if settings.over_seeds == "worst":
        return settings.signs[at] * max(settings.signs[at] * value for value in values)
    if settings.over_seeds == "iqm":
        places = np.arange(len(values))
        weights = np.clip(np.minimum(places + 1, len(values) - places) - len(values) / 4, 0.0, 1.0)
        return float(np.average(np.sort(values), weights=weights))
    return sum(values) / len(values)


def interval(values: list[float]) -> list[float] | None:
    """Return the bounds of a 95 % bootstrap interval of the mean; None for a single value."""
    if len(values) < 2:
        return None
    drawn = np.random.default_rng(0).choice(values, (SAMPLES, len(values))).mean(1)
    return [float(bound) for bound in np.quantile(drawn, [(1 - SURE) / 2, (1 + SURE) / 2])]

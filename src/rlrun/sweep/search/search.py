"""Create trials when workers are free, prune running ones, and find the best."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlrun.core.errors import ConfigError, did_you_mean, printable
from rlrun.core.files import counted, write_json
from rlrun.runs import lock as locks
from rlrun.runs.directory import RunDir
from rlrun.runs.progress import values_of
from rlrun.sweep.directory import JobStatus, SweepDir
from rlrun.sweep.search.settings import SearchPlan
from rlrun.sweep.search.study import (
    State,
    Study,
    Trial,
    interval,
    numbers_of,
    of_run,
    of_values,
    over_seeds,
)

JOURNAL, LOCK, ANSWER = "study.journal", "search.lock", "best.json"
LOOK = 1.0  # seconds between two checks of the jobs' metrics
WAIT = 2.0  # seconds between two attempts to get the lock


@dataclass
class Runs:
    """The runs of a trial in the search, or of a candidate that is repeated with new seeds.

    Attributes:
        trial: the trial; of a candidate, with its result in the search.
        by_key: the runs, by the keys of their jobs.
        reports: number of evaluations that were compared.
        scores: of completed runs with new seeds, a list for each objective.
    """

    trial: Trial
    by_key: Mapping[str, RunDir]
    reports: int = 0
    scores: list[list[float]] = field(default_factory=list)


class Search:
    """A search as a source of jobs for a scheduler.

    If several schedulers work on a sweep, the one that holds the lock creates and judges trials; the lock is released
    when its process ends. The others only run jobs, until they get the lock.

    Jobs are added and pruned before the study is changed. So the next process can reconstruct from the jobs where a
    killed process stopped.

    Args:
        plan: of the search.
        sweep: that runs the jobs.
        say: called with a line about each trial.
    """

    def __init__(
        self,
        plan: SearchPlan,
        sweep: SweepDir,
        say: Callable[[str], None] = print,
    ) -> None:
        self.plan = plan
        self.sweep = sweep
        self.say = say
        self.result: str | None = None  # the final result as text
        self.fruitless = False  # True if no trial has a numeric result
        self._study: Study | None = None  # set if this scheduler holds the lock
        self._open: dict[int, Runs] = {}
        self._failed: dict[int, tuple[Trial, set[str]]] = {}  # failed trials with the keys of their failed jobs
        self._candidates: list[Runs] | None = None
        self._handle: int | None = None
        self._looked = self._tried = -math.inf

    def __enter__(self) -> Search:
        return self

    def __exit__(self, *error: object) -> None:
        """Release the lock for other schedulers."""
        if self._handle is not None:
            locks.release(self._handle)
            self._handle = None

    @property
    def study(self) -> Study:
        """The study, if this scheduler holds the lock."""
        assert self._study is not None
        return self._study

    def look(self, *, news: bool) -> None:
        """Record the results of trials, and prune jobs.

        news: whether a job has ended since the last call.
        """
        if not self._asks() or (not news and time.monotonic() - self._looked < LOOK):
            return
        self._looked = time.monotonic()
        statuses = self._statuses()
        self._try_again(statuses)
        for number in list(self._open):
            self._conclude_trial(self._open[number], statuses)
        if not self._open and not self._is_due():
            self._conclude(statuses)

    def offer(self) -> bool:
        """Add the jobs of a new trial; return False if no trial is due."""
        if not self._asks() or not self._is_due():
            return False
        self._begin(self.study.ask())
        return True

    def over(self) -> bool:
        """Return True if the search is finished and adds no more jobs."""
        return self.result is not None

    def _statuses(self) -> dict[str, JobStatus]:
        return {status.job.key: status for status in self.sweep.statuses()}

    def _is_due(self) -> bool:
        """Return True if further trials are to be created."""
        return self.study.waits or self.study.asked < self.plan.trials

    def _asks(self) -> bool:
        """Return True if this scheduler holds the lock; try periodically to get it."""
        if self._study is None and time.monotonic() - self._tried >= WAIT:
            self._tried = time.monotonic()
            self._handle = locks.locked(self.sweep.path / LOCK)
            if self._handle is not None:
                self._study = Study(self.sweep.path / JOURNAL, self.plan)
                self._continue(self._study)
        return self._study is not None

    def _continue(self, study: Study) -> None:
        """Continue the trials of an earlier process."""
        statuses = self._statuses()
        for trial in study.trials:
            if trial.state == "running":
                self._begin(study.reopen(trial.number))
            elif trial.state == "failed" and not study.was_tried_again(trial.number):
                with suppress(ConfigError):
                    keys = {job.key for job in self.plan.jobs(trial.values, self.plan.seeds)} & set(statuses)
                    unfinished = {key for key in keys if statuses[key].state in ("pending", "running")}
                    self._failed[trial.number] = (
                        trial,
                        unfinished or {key for key in keys if statuses[key].state == "failed"},
                    )

    def _try_again(self, statuses: Mapping[str, JobStatus]) -> None:
        """Repeat trials whose failed jobs are pending again, because some process used --retry-failed."""
        for number, (trial, keys) in list(self._failed.items()):
            if any(statuses[key].state != "failed" for key in keys):
                del self._failed[number]
                self.study.try_again(trial)
                self.sweep.reopen((job.key for job in self.plan.jobs(trial.values, self.plan.seeds)), "pruned")
                self._candidates = None

    def _begin(self, trial: Trial) -> None:
        try:
            runs = self._add(trial, self.plan.seeds)
        except ConfigError as error:
            self._end(trial, None, "failed", str(error))
            return
        reports = max(0, self.study.reports(trial.number) - 1)  # the last one may not have been judged
        self._open[trial.number] = Runs(trial, runs, reports)

    def _add(self, trial: Trial, seeds: list[int]) -> dict[str, RunDir]:
        """Add the jobs of a trial, one for each seed; return their runs."""
        jobs = self.plan.jobs(trial.values, seeds)
        self.sweep.add(jobs)
        keys = {job.key for job in jobs}
        return {job.key: self.sweep.run(job) for job in self.sweep.jobs() if job.key in keys}

    def _conclude_trial(self, open_trial: Runs, statuses: Mapping[str, JobStatus]) -> None:
        """Report the end of a trial to the study, if it has ended, and prune its remaining jobs."""
        trial, keys, settings = open_trial.trial, set(open_trial.by_key), self.plan.settings
        states = {statuses[key].state for key in keys if key in statuses}
        if "failed" in states:
            failed = {key for key in keys if key in statuses and statuses[key].state == "failed"}
            self._failed[trial.number] = trial, failed
            self._leave(trial, keys, "failed", next(statuses[key].error for key in failed) or "")
        elif "pruned" in states:  # by a process that was killed, or for another trial with the same values
            self._leave(trial, keys, "pruned")
        elif states == {"completed"}:
            if settings.prunes:
                deque(self._report(open_trial), maxlen=0)  # other trials are compared with these reports
            runs = list(open_trial.by_key.values())
            results = [over_seeds(values, settings, at) for at, values in enumerate(self._scores(runs))]
            if any(map(math.isnan, results)):
                self._require_objectives(runs)
                self._end(trial, None, "failed", f"{', '.join(settings.objectives)}: no number")
            else:
                self._end(trial, results, "complete")
        elif settings.prunes:
            self._compare(open_trial, keys)

    def _require_objectives(self, runs: list[RunDir]) -> None:
        """Refuse to continue if no run so far has the metric of an objective.

        Raises:
            ConfigError: naming it.
        """
        names = set().union(*map(numbers_of, runs))
        complete = any(trial.state == "complete" for trial in self.study.trials)
        for name in () if complete else self.plan.settings.objectives:
            values = (value for run in runs for value in values_of(run.metrics, name))
            if name not in names and next(values, None) is None:
                raise ConfigError(f"sweep.objective: a run has no metric '{name}'{did_you_mean(name, names)}")

    def _compare(self, open_trial: Runs, keys: set[str]) -> None:
        """Prune a trial that is worse than others at the same evaluation, except after its last one."""
        last = self.plan.evaluations or math.inf
        for step, value in self._report(open_trial):
            if math.isnan(value):
                self._leave(open_trial.trial, keys, "failed", f"{self.plan.settings.objectives[0]}: no number")
                return
            if step < last and self.study.is_hopeless(open_trial.trial.number):
                self._leave(open_trial.trial, keys, "pruned", f"{value:.4g} after evaluation {step}")
                return

    def _report(self, open_trial: Runs) -> Iterator[tuple[int, float]]:
        """Report a trial's score after each evaluation that all its runs have made; yield step (from 1) and score.

        The score covers all evaluations so far. It is less noisy than the newest one, and also orders complete trials.
        """
        settings = self.plan.settings
        values = [values_of(run.metrics, settings.objectives[0]) for run in open_trial.by_key.values()]
        for step in range(open_trial.reports + 1, min(map(len, values)) + 1):
            value = over_seeds([of_values(series[:step], settings, 0) for series in values], settings, 0)
            if math.isfinite(value):
                self.study.report(open_trial.trial.number, step, value)
            open_trial.reports = step
            yield step, value

    def _leave(self, trial: Trial, keys: set[str], state: State, why: str = "") -> None:
        self.sweep.prune(keys)
        self._end(trial, None, state, why)

    def _end(self, trial: Trial, results: list[float] | None, state: State, why: str = "") -> None:
        self.study.tell(trial.number, results, state)
        self._open.pop(trial.number, None)
        came_to = ", ".join(f"{result:.4g}" for result in results) if results else state
        about = f": {why}" if why else ""
        self.say(f"trial {trial.number} {' '.join(self.plan.overrides_of(trial.values))}: {came_to}{about}")

    def _scores(self, runs: list[RunDir]) -> list[list[float]]:
        """Return the results of completed runs, a list for each objective."""
        settings = self.plan.settings
        return [[of_run(run, settings, at) for run in runs] for at in range(len(settings.objectives))]

    def _conclude(self, statuses: Mapping[str, JobStatus]) -> None:
        """Repeat the best trials with new seeds; when these runs have ended, write the result."""
        if self._candidates is None:
            best = self.study.best()
            again = best[: self.plan.settings.top]
            self._candidates = [Runs(trial, self._add(trial, self.plan.fresh)) for trial in again]
            self._candidates = self._candidates or [Runs(trial, {}) for trial in best[:1]]
            statuses = self._statuses()
        keys = [key for candidate in self._candidates for key in candidate.by_key]
        if any(statuses[key].state in ("pending", "running") for key in keys):
            return
        for candidate in self._candidates:
            completed = [run for key, run in candidate.by_key.items() if statuses[key].state == "completed"]
            candidate.scores = self._scores(completed)
        content = answer(self.plan, self.study.trials, self._candidates, self.sweep.path / ANSWER)
        self.result, self.fruitless = describe(self.plan, content), content["best"] is None


def answer(plan: SearchPlan, trials: Sequence[Trial], candidates: Sequence[Runs], path: Path) -> dict[str, Any]:
    """Return the result of a search, and write it to a file; candidates are ordered by their runs with new seeds."""
    sign = plan.settings.signs[0]
    rows = [_about(plan, rank, candidate) for rank, candidate in enumerate(candidates, start=1)]
    rows.sort(key=lambda row: math.inf if row["mean"] is None else sign * row["mean"][0])
    content = {
        "objective": plan.settings.objectives,
        "direction": plan.settings.directions,
        "trials": dict(Counter(trial.state for trial in trials)),
        "seeds": plan.seeds,
        "fresh_seeds": plan.fresh if any(candidate.by_key for candidate in candidates) else [],
        "best": rows[0] if rows else None,
        "candidates": rows,
    }
    write_json(path, content)
    return content


def _about(plan: SearchPlan, rank: int, candidate: Runs) -> dict[str, Any]:
    """Return the entry of a candidate in the result; its mean is None if one of its runs failed."""
    whole = bool(candidate.by_key) and all(
        len(values) == len(candidate.by_key) and not any(map(math.isnan, values)) for values in candidate.scores
    )
    return {
        "overrides": plan.overrides_of(candidate.trial.values),
        "command": plan.command(candidate.trial.values),
        "trial": candidate.trial.number,
        "rank": rank,  # in the search
        "searched": candidate.trial.results,
        "mean": [sum(values) / len(values) for values in candidate.scores] if whole else None,
        "interval": [interval(values) for values in candidate.scores] if whole else None,
        "scores": candidate.scores,
    }


def describe(plan: SearchPlan, content: Mapping[str, Any]) -> str:
    """Return the result as text; its last line is a command."""
    counts = content["trials"]
    incomplete = [f"{counts[state]} {state}" for state in ("pruned", "failed") if state in counts]
    number = counted(sum(counts.values()), "trial") + (f" ({', '.join(incomplete)})" if incomplete else "")
    if not content["best"]:
        return f"{number}: none came to a number"
    fresh = content["fresh_seeds"]
    over = f"over the fresh seeds {fresh[0]} to {fresh[-1]}" if fresh else "in the search, which flatters"
    lines = [f"{number}; {', '.join(plan.settings.objectives)} {over}:"]
    lines += [
        f"  {_figures(row)}  {' '.join(row['overrides'])}  (trial {row['trial']})" for row in content["candidates"]
    ]
    best, several = content["best"], len(plan.settings.objectives) > 1
    if fresh and best["rank"] != 1 and not several:
        first = next(row for row in content["candidates"] if row["rank"] == 1)
        lines.append(f"the search itself had trial {first['trial']} first, at {first['searched'][0]:.4g}")
    return "\n".join(map(printable, [*lines, best["command"]]))


def _figures(candidate: Mapping[str, Any]) -> str:
    searched = ", ".join(f"{value:.4g}" for value in candidate["searched"])
    if candidate["mean"] is None:
        why = "a run failed" if candidate["scores"] and any(candidate["scores"]) else "not run again"
        return f"{why}, in the search {searched}"
    means = []
    for mean, bounds in zip(candidate["mean"], candidate["interval"], strict=True):
        means.append(f"{mean:.4g}" + (f" [{bounds[0]:.4g}, {bounds[1]:.4g}]" if bounds else ""))
    return f"{', '.join(means)}, in the search {searched}"

"""Values that are chosen here, not by Optuna: the points of a grid in their order, and those of CMA-ES.

Optuna keeps the state of CMA-ES pickled in its study, and a study may be somebody else's. So it is computed anew from
the trials each time, which takes a moment.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from rlrun.sweep.search.plan import Plan
    from rlrun.sweep.search.study import Trial

GENERATION = "generation"  # notes of which one of CMA-ES a trial is
WIDTH = 0.25  # of the first generation, as a share of the distance between the bounds
Proposal = tuple[dict[str, Any] | None, dict[str, Any]]


def propose(
    plan: Plan, trials: Sequence[Trial], notes: Mapping[int, Mapping[str, Any]], number: int, seed: int
) -> Proposal:
    """Return values for the next trial and what to note of it; None leaves the choice to Optuna's sampler.

    number: of the trial; notes: of each trial, by its number.
    """
    if plan.points:
        return plan.points[number % len(plan.points)], {}
    if plan.settings.sampler == "cmaes":
        return _evolved(plan, trials, notes, seed)
    return None, {}


def _evolved(plan: Plan, trials: Sequence[Trial], notes: Mapping[int, Mapping[str, Any]], seed: int) -> Proposal:
    from cmaes import CMA

    numbers = [dim for dim in plan.dimensions if not dim.choices]
    start = plan.start
    mean = np.array([dim.share(start[dim.name]) if dim.name in start else 0.5 for dim in numbers])
    bounds = np.array([[0.0, 1.0]] * len(numbers))
    state = CMA(mean=mean, sigma=WIDTH, bounds=bounds, seed=seed % 2**31)
    sign = -1.0 if plan.settings.directions[0] == "maximise" else 1.0
    while True:
        ended = [past for past in trials if notes[past.number].get(GENERATION) == state.generation and _counts(past)]
        if len(ended) < state.population_size:
            break
        # Who was pruned or failed is behind all others: only the order counts.
        state.tell(
            [
                (np.array([dim.share(trial.values[dim.name]) for dim in numbers]), _rank(trial, sign))
                for trial in ended[: state.population_size]
            ]
        )
    point = state.ask()
    values = {dim.name: dim.at(float(share)) for dim, share in zip(numbers, point, strict=True)}
    return values, {GENERATION: state.generation}


def _counts(trial: Trial) -> bool:
    return trial.state in ("complete", "pruned", "failed")


def _rank(trial: Trial, sign: float) -> float:
    return sign * trial.results[0] if trial.state == "complete" else math.inf

"""Search for good hyperparameters: each trial becomes one job per seed, and their results guide further trials.

A search adds these files to a sweep's folder:

    search.json      the overrides and settings, for a resume
    study.journal    trials, their reports and results, in Optuna's format
    search.lock      held by the process that creates trials; others only run jobs
    best.json        the result
"""

from rlrun.sweep.search.search import Search
from rlrun.sweep.search.settings import Optuna, SearchPlan

__all__ = ["Optuna", "Search", "SearchPlan"]

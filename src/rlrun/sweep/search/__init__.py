"""A search for good values: trials become jobs of the sweep, one a seed, and what these report chooses further trials.

A search adds to the files of any sweep, in its folder:

    search.json      the overrides and settings, for a resume
    study.journal    trials, their reports and results; Optuna's own format
    search.lock      held by the process that asks the sampler; others run jobs
    best.json        the answer
"""

from rlrun.sweep.search.search import Search
from rlrun.sweep.search.settings import Optuna, SearchPlan

__all__ = ["Optuna", "Search", "SearchPlan"]

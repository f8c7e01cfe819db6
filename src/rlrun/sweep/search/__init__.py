"""A search for good values: trials become jobs of the sweep, one a seed, and what these report chooses further trials.

A search adds to the files of any sweep, in its folder:

    search.json      the overrides and settings that it resumes with with
    study.journal    trials, what they reported and what they came to; Optuna's own format
    search.lock      held by the coordinator that asks for trials; others help with the jobs
    best.json        the answer
"""

from rlrun.sweep.search.plan import Optuna, SearchPlan
from rlrun.sweep.search.search import Search

__all__ = ["Optuna", "Search", "SearchPlan"]

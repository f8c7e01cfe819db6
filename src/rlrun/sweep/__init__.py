"""Many runs by one command, on one machine or by several coordinators on one folder.

A sweep's folder:

    sweep.json        the words of the command, where and by whom it was begun
    jobs.sqlite       the jobs and their states
    jobs/<key>/       the run directory of each
    logs/<key>.txt    what its process printed
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlrun.sweep.book import Book as Book
    from rlrun.sweep.book import Entry as Entry
    from rlrun.sweep.coordinator import Limits as Limits
    from rlrun.sweep.expansion import Job as Job
    from rlrun.sweep.expansion import expand as expand
    from rlrun.sweep.expansion import identity as identity
    from rlrun.sweep.means import Means as Means
    from rlrun.sweep.means import apart as apart
    from rlrun.sweep.means import recalled as recalled
    from rlrun.sweep.search import Plan as Plan
    from rlrun.sweep.sweeping import Outcome as Outcome
    from rlrun.sweep.sweeping import is_sweep as is_sweep
    from rlrun.sweep.sweeping import resume as resume
    from rlrun.sweep.sweeping import sweep as sweep

_HOMES = {
    "Book": "book",
    "Entry": "book",
    "Job": "expansion",
    "Limits": "coordinator",
    "Means": "means",
    "Outcome": "sweeping",
    "Plan": "search",
    "apart": "means",
    "expand": "expansion",
    "identity": "expansion",
    "is_sweep": "sweeping",
    "recalled": "means",
    "resume": "sweeping",
    "sweep": "sweeping",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Import on first use: jobs are prepared for while the rest is imported."""
    if name not in _HOMES:
        raise AttributeError(f"module 'rlrun.sweep' has no attribute '{name}'")
    return getattr(importlib.import_module(f"rlrun.sweep.{_HOMES[name]}"), name)

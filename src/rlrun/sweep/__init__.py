"""Many runs by one command, on one machine or by several coordinators on one folder.

A sweep's folder:

    sweep.json        the words of the command, where and by whom it was begun
    jobs.sqlite       the jobs and their states
    jobs/<key>/       the run directory of each
    logs/<key>.txt    what its process printed
"""

from rlrun.sweep.book import Book, Entry
from rlrun.sweep.coordinator import Limits
from rlrun.sweep.expansion import Job, expand, identity
from rlrun.sweep.means import Means, apart, recalled
from rlrun.sweep.search import Plan
from rlrun.sweep.sweeping import Outcome, is_sweep, resume, sweep

__all__ = [
    "Book",
    "Entry",
    "Job",
    "Limits",
    "Means",
    "Outcome",
    "Plan",
    "apart",
    "expand",
    "identity",
    "is_sweep",
    "recalled",
    "resume",
    "sweep",
]

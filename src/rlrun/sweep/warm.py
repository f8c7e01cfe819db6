"""What the process does from which jobs are forked, before the first of them: import, and fill what is kept.

It starts no thread and opens no file that a child would share.
"""

import gc
import importlib
import pkgutil

import rlrun.algorithms
import rlrun.env.toys
import rlrun.sweep.work
from rlrun.config.words import parse
from rlrun.manifest import versions
from rlrun.seeds import Seeds

for module in pkgutil.iter_modules(rlrun.algorithms.__path__, "rlrun.algorithms."):
    importlib.import_module(module.name)
parse(["algorithm=sac", "+with=[rnd,icm]", "algorithm.lr=3.0e-4"])  # the grammar's tables are built by use
versions()
Seeds(0).apply()  # torch reads its own sources at the first time; each job has its own seed
gc.collect()
gc.freeze()  # else the first collection in a child touches, and thereby copies, all that it has from here

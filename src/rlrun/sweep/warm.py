"""What the process does from which jobs are forked, before the first of them: import, and fill what is kept.

It starts no thread and opens no file that a child would share.
"""

import gc
import importlib
import os
import pkgutil

# Let go at once of where the process prints that has started this: who reads that waits until nobody can write there
# any more, and to import takes longer than to refuse a command.
nowhere = os.open(os.devnull, os.O_WRONLY)
for number in (1, 2):
    os.dup2(nowhere, number)
os.close(nowhere)

algorithms = importlib.import_module("rlrun.algorithms")
for module in pkgutil.iter_modules(algorithms.__path__, "rlrun.algorithms."):
    importlib.import_module(module.name)
for name in ("rlrun.env.toys", "rlrun.sweep.work"):
    importlib.import_module(name)
# The grammar's tables are built by use.
importlib.import_module("rlrun.config.overrides").parse(["algorithm=sac", "+with=[rnd,icm]", "algorithm.lr=3.0e-4"])
importlib.import_module("rlrun.runs.manifest").versions()
# torch reads its own sources at the first time; each job has its own seed.
importlib.import_module("rlrun.core.seeds").Seeds(0).apply()
gc.collect()
gc.freeze()  # else the first collection in a child touches, and thereby copies, all that it has from here

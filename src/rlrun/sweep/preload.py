"""Imports of the process that jobs are forked from, and what it computes before the first fork.

It starts no thread and opens no file that a child would share.
"""

import gc
import importlib
import os
import pkgutil

if os.environ.get("PYTHONSAFEPATH") == "rlrun":  # of `children.safe_path`; programs that jobs start do without it
    del os.environ["PYTHONSAFEPATH"]
# Redirect stdout and stderr first: a reader of the parent's output would wait for the end of all these imports.
nowhere = os.open(os.devnull, os.O_WRONLY)
for number in (1, 2):
    os.dup2(nowhere, number)
os.close(nowhere)

algorithms = importlib.import_module("rlrun.algorithms")
for module in pkgutil.walk_packages(algorithms.__path__, "rlrun.algorithms."):
    importlib.import_module(module.name)
for name in ("rlrun.env.toys", "rlrun.commands.resume", "filelock"):
    importlib.import_module(name)
# A command that only composes builds the tables of the grammar, and reads the files that most jobs start from.
composed = ["algorithm=sac", "env=cartpole", "+with=[rnd,icm]", "algorithm.lr=3.0e-4"]
importlib.import_module("rlrun.cli.main").command().main(["train", "--cfg", "job", *composed], standalone_mode=False)
importlib.import_module("rlrun.runs.manifest").versions()
# torch reads its own sources at the first seed; each job sets its own.
importlib.import_module("rlrun.core.seeds").Seeds(0).apply()
gc.collect()
gc.freeze()  # else the first collection in a child copies all shared pages

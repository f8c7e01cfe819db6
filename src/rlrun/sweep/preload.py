"""Imports and caches of the fork server, which all jobs share.

The module must not start threads or keep files open, since children would inherit them.
"""

import gc
import importlib
import os
import pkgutil

if os.environ.get("PYTHONSAFEPATH") == "rlrun":  # set by `children.safe_path`; not for programs that jobs start
    del os.environ["PYTHONSAFEPATH"]
# Redirect stdout and stderr first: otherwise a reader of the parent's output would wait until these imports end.
nowhere = os.open(os.devnull, os.O_WRONLY)
for number in (1, 2):
    os.dup2(nowhere, number)
os.close(nowhere)

algorithms = importlib.import_module("rlrun.algorithms")
for module in pkgutil.walk_packages(algorithms.__path__, "rlrun.algorithms."):
    importlib.import_module(module.name)
for name in ("rlrun.env.toys", "rlrun.commands.resume", "filelock"):
    importlib.import_module(name)
# Composing one config fills the caches of the grammar and of the files that most jobs use.
composed = ["algorithm=sac", "env=cartpole", "+with=[rnd,icm]", "algorithm.lr=3.0e-4"]
importlib.import_module("rlrun.cli.main").command().main(["train", "--cfg", "job", *composed], standalone_mode=False)
importlib.import_module("rlrun.runs.manifest").versions()
# torch reads its own source files at the first seed; each job sets its own seed later.
importlib.import_module("rlrun.core.seeds").Seeds(0).apply()
gc.collect()
gc.freeze()  # otherwise the first garbage collection in a child would copy all shared pages

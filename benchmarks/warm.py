"""Commands in children of a process that has imported everything already: real processes, which start at once.

Each has a pid and a group of its own, gets real signals, and knows nothing of who started it.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import sys
from pathlib import Path

from rlrun.sweep.children import CONTEXT, Child

CONTEXT.set_forkserver_preload(["rlrun.cli.main", "rlrun.sweep.warm"])
PATHS = [str(Path(__file__).parents[1]), *sys.path]  # of what is imported here, before anybody adds to it


def serve(module: str, overrides: list[str], places: list[str], folder: str | None = None) -> None:
    """Be `python -m` with these words, in a folder and a group of its own, and print into two files."""
    # Else envs in processes would be asked of a server of this process, and each would import everything again.
    multiprocessing.set_start_method("fork", force=True)
    if folder is not None:
        os.setsid()
        os.chdir(folder)
    for number, place in enumerate(places, start=1):
        os.dup2(os.open(place, os.O_WRONLY | os.O_APPEND | os.O_CREAT), number)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored below a shell that runs this in its background
    sys.path.insert(0, os.getcwd())
    sys.argv = [module, *overrides]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def start(overrides: list[str], *, folder: Path, log: Path, module: str = "rlrun") -> Child:
    """Start `python -m rlrun WORDS` in a folder, in a group of its own; what it prints is added to a file."""
    return Child(serve, module, overrides, [str(log), str(log)], str(folder), paths=PATHS)

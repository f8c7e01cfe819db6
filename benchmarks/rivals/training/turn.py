"""A side's turn, in a process of its own: python -m benchmarks.rivals.training.turn PEER WORK.

Prints one JSON object: the counts between the marks, seconds to the first environment step, peak memory, versions.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from importlib import metadata

import torch

from benchmarks.rivals.training.meter import Meter
from benchmarks.rivals.training.work import Work

PACKAGES = ("torch", "numpy", "gymnasium")
LIMIT = 900  # seconds; a side that takes longer is stopped, without figures


def main(peer: str, work_json: str) -> None:
    """Train until the window is over, and end there: whatever a library does at its end is not measured."""
    work = Work(**json.loads(work_json))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not come between
    torch.set_num_threads(1)
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    signal.alarm(LIMIT)

    def report(metrics: dict[str, float]) -> None:
        versions = {name: metadata.version(name) for name in (*side.PACKAGES, *PACKAGES)}
        print(json.dumps({**metrics, "versions": versions}), file=answers, flush=True)
        os._exit(0)

    Meter(first=work.first, last=work.last, begun=work.begun, report=report).watch(work.env)
    side = importlib.import_module(f"benchmarks.rivals.training.{peer}")
    side.train(work)


if __name__ == "__main__":
    main(*sys.argv[1:])

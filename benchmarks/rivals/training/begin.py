"""A command up to its first environment step: python -m benchmarks.rivals.training.begin BEGUN ENV MODULE ARGUMENT…

Prints seconds since the process was started (BEGUN, since the epoch) as a JSON object, and ends there.
"""

from __future__ import annotations

import json
import os
import runpy
import sys

from benchmarks.rivals.training.meter import Meter


class Beginning(Meter):
    """End at the first look, which is that at the first step."""

    def look(self) -> None:
        super().look()
        self.report({"seconds": self.first_step})


def main(begun: str, env: str, module: str, *arguments: str) -> None:
    """Run a module as `python -m` does."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def report(metrics: dict[str, float]) -> None:
        print(json.dumps(metrics), file=answers, flush=True)
        os._exit(0)

    Beginning(first=1, last=1, begun=float(begun), report=report).watch(env)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The other end of a worker: a side that is asked to prepare a case and to time it, again and again.

What a side prints, and how it failed, is in its log next to the environments.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.process import ROOT, THREADS, Failed
from benchmarks.rivals.case import Case
from benchmarks.rivals.environments import REQUIREMENTS, cache, interpreter

RLRUN = "rlrun"
LIMITS = {"numpy by column": "columns", "numpy packed rows": "packed"}
MODULES = {RLRUN: RLRUN, **LIMITS, **{name: name.replace("-", "_") for name in REQUIREMENTS}}


class Side:
    """A worker process; `name` as in MODULES.

    Raises:
        Failed: its packages could not be installed or imported.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        python = interpreter(name) if name in REQUIREMENTS else Path(sys.executable)
        cache().mkdir(parents=True, exist_ok=True)
        with (cache() / f"{MODULES[name]}.log").open("w") as log:
            self._process = subprocess.Popen(
                [python, "-m", "benchmarks.rivals.worker", MODULES[name]],
                cwd=ROOT,
                env={**os.environ, **THREADS, "NUMBA_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        try:
            self.about = self._ask({"about": True})
        except Failed:
            self.close()
            raise

    def prepare(self, case: Case) -> dict[str, Any]:
        """Fill a memory; return the `bytes` of a call's tensors, or `lacks`: why there is no such call.

        Raises:
            Failed: the side failed.
        """
        return self._ask({"prepare": list(case)})

    def seconds(self) -> float:
        """Return the processor time that a call of the prepared case takes now, the mean of many.

        Raises:
            Failed: the side failed.
        """
        return float(self._ask({"time": True})["seconds"])

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Side:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            print(json.dumps(message), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()  # type: ignore[union-attr]
        except BrokenPipeError:
            line = ""
        if not line:
            raise Failed(f"the process of {self.name} ended with {self._process.wait()}")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise Failed(reply["error"])
        return reply

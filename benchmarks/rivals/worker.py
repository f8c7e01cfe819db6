"""One side, in a process that runs all cases: python -m benchmarks.rivals.worker MODULE.

Answers each line of JSON by one: {"about": true} returns how the side is used, {"prepare": [fields of a case]}
fills a memory and finds out how many calls take a while, {"time": true} makes them.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from importlib import metadata
from types import ModuleType
from typing import Any

import torch

from benchmarks.rivals.case import Call, Case, episode

SECONDS = 0.25  # of a round


class Worker:
    """Keeps the memory of the newest case."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.call: Call | None = None
        self.calls = 0

    @property
    def side(self) -> ModuleType:
        """The module, imported when it is first asked for: what an import raises is an answer."""
        return importlib.import_module(f"benchmarks.rivals.{self.module}")

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Do what a message says."""
        if "about" in message:
            return self.about()
        if "prepare" in message:
            return self.prepare(Case(*message["prepare"]))
        return {"seconds": self.time() / self.calls}

    def about(self) -> dict[str, Any]:
        """Return how the side is used, and its versions."""
        versions = {name: metadata.version(name) for name in (self.side.PACKAGE, "torch", "numpy")}
        return {"how": (self.side.__doc__ or "").splitlines()[0], "versions": versions}

    def prepare(self, case: Case) -> dict[str, Any]:
        """Fill a memory, call once, and count calls until they take long enough."""
        self.call = None  # frees the memory of the case before
        for need in (case.kind, "images") if case.images else (case.kind,):
            if need in self.side.LACKS:
                return {"lacks": self.side.LACKS[need]}
        self.call = self.side.CALLS[case.kind](case, episode(case))
        size = nbytes(self.call())
        self.calls = 1
        taken = self.time()
        while taken < SECONDS / 4:
            self.calls *= 2
            taken = self.time()
        self.calls = max(1, round(self.calls * SECONDS / taken))
        return {"bytes": size}

    def time(self) -> float:
        """Return the processor seconds of so many calls: one thread, nothing waits, so other load counts least.

        Raises:
            RuntimeError: there is no call; `prepare` failed.
        """
        call = self.call
        if call is None:
            raise RuntimeError("nothing was prepared")
        start = time.process_time()
        for _ in range(self.calls):
            call()
        return time.process_time() - start


def nbytes(batch: Any) -> int:
    """Return the bytes of all tensors in whatever a library calls a batch."""
    if isinstance(batch, torch.Tensor):
        return batch.nbytes
    parts = batch.values() if hasattr(batch, "values") else batch
    return sum(nbytes(part) for part in parts) if batch is not None else 0


def main(module: str) -> None:
    """Answer lines until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not come between the answers
    torch.set_num_threads(1)
    worker = Worker(module)
    for line in sys.stdin:
        try:
            reply = worker.answer(json.loads(line))
        except Exception as error:  # a side that fails is a result, not the end of the others
            traceback.print_exc()
            reply = {"error": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
        print(json.dumps(reply), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

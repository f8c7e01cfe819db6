"""What a run takes of the machine."""

import os
import resource
import sys
import time
from pathlib import Path

import torch

MIB = 1 << 20
STATM = Path("/proc/self/statm")  # of Linux: sizes in pages, the second is the memory in use


class System:
    """Metrics of the process that trains, without its workers.

    Linux and Python's standard library give them, so no package is needed.
    """

    def __init__(self) -> None:
        self._first: float | None = None  # memory at the first reading
        self._read = (time.perf_counter(), time.process_time())

    def metrics(self) -> dict[str, float]:
        """Return memory in MiB, its growth since the first reading, and processor cores in use since the last."""
        memory = memory_in_use() / MIB
        self._first = memory if self._first is None else self._first
        before, self._read = self._read, (time.perf_counter(), time.process_time())
        elapsed, busy = (now - then for now, then in zip(self._read, before, strict=True))
        metrics = {
            "system/memory": memory,
            "system/memory_growth": memory - self._first,
            "system/cpu": busy / max(elapsed, 1e-9),
        }
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            metrics["system/gpu_memory"] = torch.cuda.memory_reserved() / MIB
        return metrics


def memory_in_use() -> int:
    """Return the bytes of main memory that this process uses; on other systems than Linux, the most so far."""
    try:
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

"""What a full table takes: the growth of a process's peak memory, against the bytes of what is stored.

In a process of its own: python -m benchmarks.memory_bytes peak|image_bytes prints one JSON object.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.process import Failed, run_for_json
from benchmarks.rivals.case import ACTION, COUNT, FRAME, OBSERVATION, STACK, Case, Episode, episode, fill
from benchmarks.rivals.rlrun import make, writer

BARS = {"peak": 1.1, "image_bytes": 1.2}
CASES = {"peak": Case("sample"), "image_bytes": Case("sample", capacity=100_000, images=True)}
STORED = {  # bytes a transition
    "peak": 4 * (OBSERVATION + ACTION + 1) + 2,
    "image_bytes": FRAME[0] * FRAME[1],  # of the newest frame; the others are stored already
}
WHAT = {
    "peak": f"peak memory of a full table / bytes of its columns, {CASES['peak'].capacity:,} transitions",
    "image_bytes": f"memory of a full table of stacks of {STACK} frames / bytes of its frames, "
    f"{CASES['image_bytes'].capacity:,} transitions",
}


def measure(name: str) -> dict[str, Any]:
    """Fill a table in a process of its own, and compare."""
    bar = {"what": WHAT[name], "bar": BARS[name]}
    with TemporaryDirectory() as folder:
        try:
            result = run_for_json(["-m", "benchmarks.memory_bytes", name], folder=Path(folder))
        except Failed as failure:
            return {**bar, "error": str(failure).strip().splitlines()[-1], "passed": False}
    ratio = result["grown"] / result["stored"]
    print(f"{name}: {ratio:.3f}", flush=True)
    return {**bar, **result, "ratio": ratio, "passed": ratio <= BARS[name]}


def growth(name: str) -> dict[str, int]:
    """Return how far the peak memory grew while a table was filled and sampled, and what it had to store."""
    case = CASES[name]
    small = case._replace(capacity=1_000)
    _use(small, episode(small))  # whatever is loaded or kept once does not count
    data = episode(case)
    gc.collect()
    before = status("VmRSS")
    _use(case, data)
    return {"grown": status("VmHWM") - before, "stored": STORED[name] * case.capacity}


def _use(case: Case, data: Episode) -> None:
    table = make(case)
    fill(writer(table, data), case)
    for _ in range(0 if case.images else 100):  # a batch of images is no part of the memory
        table.sample(COUNT)


def status(key: str) -> int:
    """Return a number of bytes from this process's account: VmRSS (now) or VmHWM (the most so far)."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[key].split()[0]) * 1024


if __name__ == "__main__":
    print(json.dumps(growth(sys.argv[1])))

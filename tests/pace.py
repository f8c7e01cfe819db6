"""Limits of time that hold on slow and busy machines, too."""

import copy
import json
import time
from collections.abc import Callable

QUIET = 0.0097  # processor seconds that `slowness` takes on the machine which the bars were set on, undisturbed
PATIENCE = 40.0  # seconds


def slowness() -> float:
    """Return how much longer this machine takes for plain Python just now than the one that bars were set on."""
    start = time.process_time()
    named: dict[int, str] = {}
    for number in range(20_000):
        named[number] = str(number)
        named.get(number - 1)
    copy.deepcopy({number: [named[number]] for number in range(2_000)})
    json.loads(json.dumps(list(named.values())))
    return (time.process_time() - start) / QUIET


def within(measure: Callable[[], float], bar: float) -> bool:
    """Return True if some measurement stays below its bar, scaled by how slow the machine is before and after it.

    Other load can only add, and comes and goes: what fails is measured again for a while.

    Args:
        measure: returns seconds, or whatever else the bar is in.
    """
    until, before = time.monotonic() + PATIENCE, slowness()
    while True:
        value = measure()
        after = slowness()
        if value < bar * max(1.0, min(before, after)):
            return True
        if time.monotonic() > until:
            return False
        before = after

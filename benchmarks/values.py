"""Values that are known exactly, learned by every algorithm in the full product of endings and modes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.values.known import ENDINGS, MODES, NUMBERS, SMALL, WINDOWS, Case, algorithms, learned

LONG = 2_000  # updates: enough for values that many steps add up to, at a third of the learning rate
MANY_ROWS = 20_000  # of recurrent networks: of few rows they learn which actions were lucky


def everything() -> Iterator[Case]:
    """Yield the full product."""
    for states in (1, 2):
        for ending in ENDINGS:
            for algorithm in algorithms():
                yield Case(algorithm, states, ending)
            for mode, (_, those) in MODES.items():
                for algorithm in those:
                    yield Case(algorithm, states, ending, mode)


def _numbers(case: Case) -> dict[str, Any]:
    own = NUMBERS.get(case.algorithm, {})
    numbers = {**SMALL, **own}
    numbers["algorithm.lr"] /= 3.0
    many = {"algorithm.warmup_steps": MANY_ROWS - 10, "memory.length": 2 * MANY_ROWS}
    return {**numbers, **(many if own is WINDOWS else {})}


def measure(cases: Iterable[Case] | None = None) -> dict[str, Any]:
    """Return what each case came to, by name; None = the full product."""
    results = {}
    for case in everything() if cases is None else cases:
        with TemporaryDirectory() as place:
            results[case.name] = learned(case, Path(place) / "run", LONG, _numbers(case))
        print(f"{case.name}: {results[case.name]['error']:.2%}", flush=True)
    return results

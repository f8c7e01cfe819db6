"""Values that are known exactly, learned by every algorithm in the full product of endings and modes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.values.known import ENDINGS, MODES, NUMBERS, SMALL, WINDOWS, Case, algorithms, learned, own_numbers

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
    own = own_numbers(case)
    numbers = {**SMALL, **own}
    numbers["algorithm.lr"] /= 3.0
    many = {"algorithm.warmup_steps": MANY_ROWS - 10, "memory.length": 2 * MANY_ROWS}
    return {**numbers, **(many if NUMBERS.get(case.algorithm) is WINDOWS else {})}


def measure(cases: Iterable[Case] | None = None, *, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Return what each case came to, by its name and the overrides.

    cases: None = the full product.
    overrides: further ones of every run, such as `compile=true`.
    """
    results = {}
    for case in everything() if cases is None else cases:
        name = " ".join((case.name, *overrides))
        with TemporaryDirectory() as place:
            results[name] = learned(case, Path(place) / "run", LONG, _numbers(case), overrides)
        print(f"{name}: {results[name]['error']:.2%}", flush=True)
    return results

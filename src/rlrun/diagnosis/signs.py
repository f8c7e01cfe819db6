"""What a check of a run comes to."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import NamedTuple

from rlrun.diagnosis.facts import Facts


class Beside(Exception):
    """A check has nothing to look at in runs of this kind."""


class Sign(NamedTuple):
    """What was found.

    Attributes:
        reason: a sentence with the run's own numbers.
        evidence: these numbers, by name.
        remedy: what to do, with the words of the command line where there are such.
    """

    reason: str
    evidence: Mapping[str, float]
    remedy: str


Check = Callable[[Facts], Sign | None]


def shown(value: float) -> str:
    """Return a number as people read it: three digits that count, thousands apart."""
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value):,}"
    return f"{value:,.0f}" if 1e3 <= abs(value) < 1e9 else f"{value:.3g}"


def word(key: str, value: float | None) -> str:
    """Return a word of the command line that sets a number, or null; whose key is odd is quoted for a shell."""
    return shlex.quote(f"{key}={'null' if value is None else _written(value)}")


def _written(value: float) -> str:
    """Return a number in a form that YAML reads as one."""
    if value == int(value) and 1 <= abs(value) < 1e12:
        return f"{int(value):_}"
    text = f"{value:.2g}"
    mantissa, _, exponent = text.partition("e")
    if not exponent:
        return text
    return f"{mantissa if '.' in mantissa else f'{mantissa}.0'}e{int(exponent)}"

"""Numbers that change during training: pure functions of the step.

A schedule keeps no state, so a resumed run reads the same numbers. The caller decides whether a step is an environment
step or an update.
"""

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from rlrun.core.errors import ConfigError

Schedule = Callable[[int], float]


def as_schedule(value: float | Schedule) -> Schedule:
    """Return a schedule as it is, and a number as a constant one."""
    return value if callable(value) else Constant(float(value))


def positive(name: str, value: float) -> Fraction:
    """Return a setting as the decimal that was written: 0.1 is a tenth.

    Raises:
        ConfigError: naming the key, if it is no number above 0.
    """
    try:
        number = Fraction(str(value))
    except ValueError:
        number = Fraction(0)
    if number <= 0:
        raise ConfigError(f"{name} must be a number above 0, not {value}")
    return number


def _fraction(step: float, begin: float, steps: float) -> float:
    """How far `step` is on the way from `begin` to `begin + steps`, within [0, 1]."""
    if steps <= 0:
        return float(step >= begin)
    return min(max((step - begin) / steps, 0.0), 1.0)


@dataclass(frozen=True)
class Constant:
    """The same number at every step."""

    value: float

    def __call__(self, step: int) -> float:
        return self.value


@dataclass(frozen=True)
class OverBudget:
    """A schedule over the share of the budget that is used up, 0 to 1, in place of steps.

    progress: of the run; value: a schedule whose steps are shares, as a `Linear` with `steps: 1`.

    Raises:
        ConfigError: the run has no budget of environment steps or updates, or an argument is not callable.
    """

    progress: Callable[[], float]
    value: Callable[[float], float]

    def __post_init__(self) -> None:
        for name, wanted in {"progress": "${progress}", "value": "a schedule over shares from 0 to 1"}.items():
            if not callable(getattr(self, name)):
                raise ConfigError(f"{name}: wanted {wanted}, got {getattr(self, name)!r}")
        self.progress()

    def __call__(self, step: int) -> float:
        return self.value(self.progress())


@dataclass(frozen=True)
class Linear:
    """A straight line from `first` to `last` over `steps`, then `last`; without `steps` it stays at `first`.

    hold: share of the steps for which it stays at `first`, before the line.
    """

    first: float
    last: float
    steps: float | None
    begin: float = 0
    hold: float = 0.0

    def __call__(self, step: int) -> float:
        if self.steps is None:  # read from a budget that is not set
            return self.first
        hold = round(self.hold * self.steps)
        return self.first + (self.last - self.first) * _fraction(step, self.begin + hold, self.steps - hold)


@dataclass(frozen=True)
class Exponential:
    """From `first` to `last` by equal factors over `steps`, then `last`.

    Raises:
        ConfigError: the ends do not have the same sign.
    """

    first: float
    last: float
    steps: float
    begin: float = 0

    def __post_init__(self) -> None:
        if self.first * self.last <= 0.0:
            raise ConfigError(
                f"schedules.Exponential needs two ends of the same sign, not {self.first} and {self.last}"
            )

    def __call__(self, step: int) -> float:
        return self.first * math.pow(self.last / self.first, _fraction(step, self.begin, self.steps))


@dataclass(frozen=True)
class Staircase:
    """A straight line that is held for `every` steps at a time."""

    first: float
    last: float
    steps: float
    every: float
    begin: float = 0

    def __call__(self, step: int) -> float:
        stair = self.begin + (step - self.begin) // self.every * self.every
        return self.first + (self.last - self.first) * _fraction(stair, self.begin, self.steps)


@dataclass(frozen=True)
class Step:
    """Constant pieces: `values[i]` until step `at[i]`, the last value from then on.

    Raises:
        ConfigError: the number of values is not that of steps plus one, or the steps do not grow.
    """

    values: Sequence[float]
    at: Sequence[float]

    def __post_init__(self) -> None:
        if len(self.values) != len(self.at) + 1 or list(self.at) != sorted(self.at):
            raise ConfigError(
                f"schedules.Step needs growing steps and one value more than steps, "
                f"not {len(self.values)} values and at={list(self.at)}"
            )

    def __call__(self, step: int) -> float:
        return self.values[bisect.bisect_right(self.at, step)]


@dataclass(frozen=True)
class Cyclic:
    """A triangle from `low` to `high` and back, `half_period` steps each way, for ever.

    shrink: factor of each peak's height to the one before; 0.5 is known as triangular2.
    """

    low: float
    high: float
    half_period: float
    shrink: float = 1.0

    def __call__(self, step: int) -> float:
        cycle, within = divmod(step, 2 * self.half_period)
        height = 1.0 - abs(within / self.half_period - 1.0)
        return self.low + (self.high - self.low) * height * float(self.shrink**cycle)


@dataclass(frozen=True)
class CosineAnnealing:
    """Half a cosine from `first` to `last` over `steps`, then back; with `restart` each half begins at `first`."""

    first: float
    last: float
    steps: float
    restart: bool = False

    def __call__(self, step: int) -> float:
        phase = (step % self.steps if self.restart else step) / self.steps
        return self.last + 0.5 * (self.first - self.last) * (1.0 + math.cos(math.pi * phase))

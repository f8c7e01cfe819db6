"""The search space: the searched overrides with their values."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep

from rlrun.config.expansion import numbers_of, read, values
from rlrun.config.overrides import parse
from rlrun.config.schema import CHANGEABLE
from rlrun.core.errors import ConfigError

DIGITS = 4  # significant digits of a number that is sampled between two bounds
MOST_POINTS = 1_000_000  # largest size of a grid
EXAMPLE = "'algorithm.lr=tag(log,interval(1e-5,1e-2))'"


@dataclass(frozen=True)
class Dimension:
    """A searched override: a choice among texts, or a number within bounds.

    Attributes:
        name: of the override before `=`, with its sign.
        choices: texts; empty for a number.
        low: the lower bound; an int if all values are.
        high: the upper bound, inclusive.
        step: distance of two values; None = continuous.
        log: whether the number is sampled on a logarithmic scale.
    """

    name: str
    choices: tuple[str, ...] = ()
    low: float = 0
    high: float = 0
    step: float | None = None
    log: bool = False

    @property
    def key(self) -> str:
        """The name without its sign."""
        return self.name.lstrip("+")

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int)

    def suggest(self, trial: Any) -> Any:
        """Return the value that Optuna suggests for a trial."""
        if self.choices:
            return trial.suggest_categorical(self.name, self.choices)
        if self.whole:
            return trial.suggest_int(self.name, self.low, self.high, step=self.step or 1, log=self.log)
        return trial.suggest_float(self.name, self.low, self.high, step=self.step, log=self.log)

    def middle(self) -> float:
        """Return a number between the bounds that is almost certainly not whole, unless all values are whole."""
        if self.whole:
            return self.low
        share = 0.381966  # 2 minus the golden ratio
        if self.log:
            return float(self.low * (self.high / self.low) ** share)
        return self.low + (
            round(share * (self.high - self.low) / self.step) * self.step
            if self.step
            else share * (self.high - self.low)
        )

    def takes(self, value: Any) -> bool:
        """Return True if a value is one of the choices, or within the bounds."""
        if self.choices:
            return value in self.choices
        number = isinstance(value, int if self.whole else int | float) and not isinstance(value, bool)
        return number and self.low <= value <= self.high

    def override(self, value: Any) -> str:
        """Return the override for a value, rounded to few digits."""
        if self.choices or self.whole:
            return f"{self.name}={value}"
        near = float(f"{value:.{10 if self.step else DIGITS}g}")
        return f"{self.name}={min(max(near, float(self.low)), float(self.high))!r}"

    def values(self) -> list[Any]:
        """Return all values, for a grid.

        Raises:
            ConfigError: the dimension is continuous.
        """
        if self.choices:
            return list(self.choices)
        if self.step is None:
            raise ConfigError(f"sweep.sampler=grid: {self.key} has no end of values; name some: a,b,c or range(…)")
        count = round((self.high - self.low) / self.step) + 1
        return [self.low + index * self.step for index in range(count)]


def divide(
    overrides: Iterable[str], params: Mapping[str, Any], config_dir: Path | None = None
) -> tuple[list[str], list[Dimension]]:
    """Split overrides into fixed ones and searched dimensions.

    Args:
        overrides: of the command line.
        params: key -> values from a file; an override of the same key replaces them.
        config_dir: the user's own conf folder.

    Raises:
        ConfigError: an override is malformed, or its values cannot be searched.
    """
    parsed = [read(text.strip()) for text in overrides]
    typed = {override.get_key_element().lstrip("+") for override in parsed}
    added = [read(text) for key, text in _texts(params) if key.lstrip("+") not in typed]
    fixed, dimensions = [], {}
    for override in (*added, *parsed):
        if override.is_sweep_override():
            dimension = _dimension(override, config_dir)
            dimensions[dimension.key] = dimension
        else:
            fixed.append(str(override.input_line))
    if not dimensions:
        raise ConfigError(f"a search needs an override with several values: {EXAMPLE}")
    return fixed, list(dimensions.values())


def grid(dimensions: Sequence[Dimension]) -> list[dict[str, Any]]:
    """Return all combinations of values; the last dimension changes fastest.

    Raises:
        ConfigError: a dimension is continuous, or there are too many combinations.
    """
    options = [dimension.values() for dimension in dimensions]
    count = math.prod(map(len, options))
    if count > MOST_POINTS:
        raise ConfigError(f"sweep.sampler=grid: {count:,} combinations; at most {MOST_POINTS:,}")
    names = [dimension.name for dimension in dimensions]
    return [dict(zip(names, values, strict=True)) for values in product(*options)]


def _texts(params: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Yield key and override for each entry in a file; keys may be nested or dotted."""
    for name, value in params.items():
        key = f"{above}{name}"
        if isinstance(value, Mapping):
            yield from _texts(value, f"{key}.")
        elif isinstance(value, list):
            yield key, f"{key}=choice({','.join(map(_text, value))})"
        else:
            yield key, f"{key}={_text(value)}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _dimension(override: Override, config_dir: Path | None) -> Dimension:
    name, value, text = override.get_key_element(), override.value(), override.input_line
    key = name.lstrip("+")
    if key == "seed":
        raise ConfigError(f"'{text}': a seed is nothing to choose; every trial has those of sweep.seeds=[0,1,2]")
    if any(f"{key}.".startswith(f"{prefix}.") for prefix in CHANGEABLE):
        raise ConfigError(f"'{text}': a search chooses what is learned by, and {key} may differ within one run")
    tags = set(getattr(value, "tags", ()))
    if tags - {"log"}:
        raise ConfigError(f"'{text}': there is no tag '{min(tags - {'log'})}'; a search knows tag(log,…)")
    log = "log" in tags
    if isinstance(value, IntervalSweep):
        low: Any = value.start
        high: Any = value.end
        if not (math.isfinite(low) and math.isfinite(high) and low <= high):
            raise ConfigError(f"'{text}': wanted interval(LOW,HIGH), two numbers in order")
        dimension = Dimension(name, low=low, high=high, log=log)
    elif isinstance(value, RangeSweep):
        dimension = replace(_stepped(name, value, str(text)), log=log)
    if isinstance(value, IntervalSweep | RangeSweep):
        if log and dimension.low <= 0:
            raise ConfigError(f"'{text}': the logarithm of {dimension.low:g} cannot be spread evenly; begin above 0")
        if log and dimension.step not in (None, 1):
            raise ConfigError(f"'{text}': tag(log,…) goes with any number, interval(LOW,HIGH), or with steps of 1")
        return dimension
    if log:
        raise ConfigError(f"'{text}': tag(log,…) goes with interval(LOW,HIGH) or range(FIRST,END), not with a list")
    choices = tuple(dict.fromkeys(values(override, config_dir)))
    if not choices:
        raise ConfigError(f"'{text}': this lists no value")
    return Dimension(name, choices=choices)


def _stepped(name: str, value: RangeSweep, text: str) -> Dimension:
    numbers = numbers_of(value, text)
    if not numbers:
        raise ConfigError(f"'{text}': this lists no value")
    low, high = sorted((numbers[0], numbers[-1]))
    return Dimension(name, low=low, high=high, step=abs(value.step))


def chosen_in(config: Mapping[str, Any], choices: Mapping[str, Any], dimension: Dimension) -> Any:
    """Return a dimension's value in a composed config; None if it is outside the search space.

    config: key -> value, resolved; choices: group -> file.
    """
    current = choices.get(dimension.key, config.get(dimension.key))
    if not dimension.choices:
        return current if dimension.takes(current) else None
    named = {text: parse([f"{dimension.key}={text}"])[0].value for text in dimension.choices}
    return next((text for text, value in named.items() if value == current), None)

"""Expand the overrides of a command line into jobs: `algorithm=sac,dqn seed=range(5)` makes ten."""

import hashlib
import json
import logging
import math
import pickle
import random
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, RangeSweep
from hydra.errors import HydraException
from omegaconf import DictConfig

from rlrun import config as configuration
from rlrun.config import Composed, Composer
from rlrun.config.composition import folder_of
from rlrun.config.interpolation import dotted, leaves, nested, plain
from rlrun.config.overrides import GRID, LONGEST, SUBDIR, parse
from rlrun.config.schema import CHANGEABLE
from rlrun.core.errors import ConfigError

_SPECIAL = re.compile(r"([][{}():=,\\ ])")  # letters of a key in braces that need a backslash
_WORD = re.compile(r"[A-Za-z_][\w./@-]*")
DIGITS = 12  # length of a job's key
MOST = 100_000  # largest number of values in a range

_messages = logging.getLogger("rlrun")


@dataclass(frozen=True)
class Job:
    """One run of a sweep.

    Attributes:
        key: digest of everything that training depends on; another budget or logger does not change it.
        overrides: of its own command line, one value each.
        label: the overrides that differ between jobs.
        preset: the preset for its overrides, if any.
        composed: the composed config, compressed, so that the process which runs the job need not compose it again.
        subdir: its folder inside the sweep, from the user's pattern; it may contain NUMBER.
    """

    key: str
    overrides: tuple[str, ...]
    label: str
    preset: str | None = field(default=None, compare=False)
    composed: bytes = field(default=b"", repr=False, compare=False)
    subdir: str | None = field(default=None, compare=False)


def expand(overrides: Iterable[str], config_dir: Path | None = None) -> list[Job]:
    """Return a job for each combination of values; the last override with several values changes fastest.

    Of combinations with the same config the first is kept; a warning names the rest.

    Raises:
        ConfigError: an override is malformed, the config of one combination is wrong, or two would be the same run;
            the message names it.
    """
    alternatives = [_alternatives(override.strip(), config_dir) for override in overrides]
    composer, jobs, duplicates = Composer(config_dir), dict[str, Job](), list[str]()
    for chosen in product(*alternatives):
        label = " ".join(override for override, options in zip(chosen, alternatives, strict=True) if len(options) > 1)
        try:
            composed = composer.compose(chosen)
        except ConfigError as error:
            raise ConfigError(f"{label}: {error}" if label else str(error)) from error
        key = identity(composed.config)
        if key not in jobs:
            jobs[key] = job_of(composed, label, key)
            continue
        before, now = (dict(leaves(plain(both.config))) for both in (composed_of(jobs[key].composed), composed))
        if keys := [dotted(path) for path in before | now if before.get(path) != now.get(path)]:
            raise ConfigError(
                f"{label} differs from {jobs[key].label} only in {', '.join(keys)}, which may change when a run is "
                "resumed, so both are the same run: start a sweep for each value"
            )
        duplicates.append(label)
    if duplicates:
        _messages.warning("left out, since an earlier combination has the same config: %s", ", ".join(duplicates))
    return list(jobs.values())


def gridded(overrides: Sequence[str], config_dir: Path | None = None) -> tuple[list[str], Composed | None]:
    """Prepend the grid `hydra.sweeper.params` to the overrides; return all, and the config of the first combination.

    An override replaces the grid's values of the same key. The config is None if an override is wrong.
    """
    overrides = _with_typed_grid(overrides)
    typed = [(text, read(text)) for text in overrides]
    finite = [text for text, override in typed if not override.is_interval_sweep()]
    try:
        first = Composer(config_dir).compose([_alternatives(text, config_dir)[0] for text in finite], check=False)
    except ConfigError:  # `expand` and a search name the combination
        return overrides, None
    return [*_of_grid(first.hydra.get(GRID, {}), [override for _, override in typed]), *overrides], first


def _with_typed_grid(overrides: Sequence[str]) -> list[str]:
    """Rewrite each `hydra.sweeper.params.KEY=A,B` as `KEY=A,B`, and place them before the other overrides."""
    grid, others = dict[str, Any](), dict[str, Override]()
    for text in map(str.strip, overrides):
        override = read(text)
        key = override.get_key_element().lstrip("+")
        if not f"{key}.".startswith(f"{GRID}."):
            others[text] = override
            continue
        value = text.partition("=")[2] if override.is_sweep_override() else override.value()
        inside = tuple(filter(None, key.removeprefix(GRID).split(".")))
        grid |= {dotted(path): leaf for path, leaf in leaves(nested(inside, value))}
    return [*_of_grid(grid, others.values()), *others]


def _of_grid(grid: Mapping[str, Any], typed: Iterable[Override]) -> list[str]:
    """Return the overrides of a grid (key -> values), without keys that the user also typed."""
    keys = {override.get_key_element().lstrip("+~") for override in typed}
    named = {key: ",".join(map(_written, value)) if isinstance(value, list) else value for key, value in grid.items()}
    return [f"{key}={value}" for key, value in named.items() if key.lstrip("+~") not in keys]


def _written(value: Any) -> str:
    """Return a YAML value in Hydra's grammar; a text that could be read as another type is quoted."""
    if isinstance(value, dict):
        entries = {_SPECIAL.sub(r"\\\1", str(key)): _written(entry) for key, entry in value.items()}
        return "{" + ",".join(f"{key}:{entry}" for key, entry in entries.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    if not isinstance(value, str):
        return "null" if value is None else str(value)
    if _WORD.fullmatch(value) and value.lower() not in ("null", "true", "false", "nan", "inf"):
        return value
    return "'" + re.sub(r"(\\*)'", r"\1\1\'", re.sub(r"\\+$", lambda match: match[0] * 2, value)) + "'"


def job_of(composed: Composed, label: str, key: str | None = None) -> Job:
    """Return the job of a composed config; `key` is its `identity`, if it is known."""
    packed, subdir = zlib.compress(pickle.dumps(composed)), folder_of(SUBDIR, composed)
    return Job(key or identity(composed.config), tuple(composed.overrides), label, composed.preset, packed, subdir)


def composed_of(job: bytes) -> Composed:
    """Unpack the composed config of a job."""
    composed: Composed = pickle.loads(zlib.decompress(job))
    return composed


def identity(config: DictConfig) -> str:
    """Return a digest of a composed config; keys that a resume may change do not count."""
    tree: Any = plain(config)
    for key in CHANGEABLE:
        *parents, last = key.split(".")
        node = tree
        for name in parents:
            node = node.get(name) if isinstance(node, dict) else None
        if isinstance(node, dict):
            node.pop(last, None)
    text = json.dumps(tree, sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def changeable(overrides: Sequence[str]) -> list[str]:
    """Return the overrides that a resumed run accepts."""
    return [
        override.text
        for override in parse(overrides)
        if any(f"{override.key}.".startswith(f"{key}.") for key in CHANGEABLE)
    ]


def read(text: str) -> Override:
    """Parse an override that may have several values.

    Raises:
        ConfigError: it is malformed.
    """
    if len(text) > LONGEST:
        parse([text])  # raises the error
    try:
        return OverridesParser.create().parse_overrides([text])[0]
    except (HydraException, RecursionError):
        parse([text])  # raises an error that says what is wrong
        raise


def _alternatives(text: str, config_dir: Path | None) -> list[str]:
    """Return one override for each value of an override."""
    override = read(text)
    if not override.is_sweep_override():
        return [text]
    if override.is_interval_sweep():
        raise ConfigError(
            f"'{text}': an interval has no end of values: +sweep=optuna searches it; a sweep tries a,b,c or range(…)"
        )
    named = list(values(override, config_dir))
    if not named:
        raise ConfigError(f"'{text}': it lists no value")
    return [f"{override.get_key_element()}={value}" for value in named]


def numbers_of(value: RangeSweep, text: str) -> Sequence[float]:
    """Return the numbers of a range without its end, in decimal arithmetic: `range(0.1,0.4,0.1)` has three.

    Raises:
        ConfigError: a bound is infinite, the step is 0, or there are too many numbers.
    """
    bounds = value.start or 0, value.stop or 0, value.step
    if not all(map(math.isfinite, bounds)) or not value.step:
        raise ConfigError(f"'{text}': wanted range(FIRST,END,STEP), finite numbers and a step that is not 0")
    if all(isinstance(number, int) for number in bounds):
        return range(*map(int, bounds))
    first, stop, step = (Fraction(f"{number:.15g}") for number in bounds)
    if (stop - first) / step > MOST:
        raise ConfigError(f"'{text}': it lists more than {MOST:,} values")
    return [float(first + index * step) for index in range(math.ceil((stop - first) / step))]


def values(override: Override, config_dir: Path | None) -> Iterator[str]:
    """Yield the values of an override that has finitely many.

    Raises:
        ConfigError: a range is too long, or a pattern is given for a group without files.
    """
    value = override.value()
    if isinstance(value, RangeSweep):
        numbers = numbers_of(value, str(override.input_line))
        if len(numbers[: MOST + 1]) > MOST:
            raise ConfigError(f"'{override.input_line}': it lists more than {MOST:,} values")
        yield from map(str, random.sample(numbers, len(numbers)) if value.shuffle else numbers)
        return
    if not isinstance(value, Glob):
        yield from override.sweep_string_iterator()
        return
    names = configuration.choices(override.key_or_group, config_dir)
    if not names:
        raise ConfigError(
            f"'{override.input_line}': a pattern chooses among files, and conf/{override.key_or_group}/ has none"
        )
    yield from value.filter(list(names))

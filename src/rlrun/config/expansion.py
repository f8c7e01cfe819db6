"""From the overrides of a command line to jobs: `algorithm=sac,dqn seed=range(5)` are ten."""

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
DIGITS = 12  # of a job's key
MOST = 100_000  # values of a range

_messages = logging.getLogger("rlrun")


@dataclass(frozen=True)
class Job:
    """One run of a sweep.

    Attributes:
        key: digest of all that training depends on; a job of another budget, or logged elsewhere, has the same.
        overrides: of its own command line, one value each.
        label: the overrides that are not the same in all jobs.
        preset: the preset that its overrides came to, if any.
        composed: what they were composed to, small, for the process that runs it; composing takes it longer.
        subdir: its folder, below that of the sweep, as a pattern of the user names it; it may hold NUMBER.
    """

    key: str
    overrides: tuple[str, ...]
    label: str
    preset: str | None = field(default=None, compare=False)
    composed: bytes = field(default=b"", repr=False, compare=False)
    subdir: str | None = field(default=None, compare=False)


def expand(overrides: Iterable[str], config_dir: Path | None = None) -> list[Job]:
    """Return a job for each combination of values; the last override with several changes fastest.

    Of combinations with the same config the first is kept; a warning names the others.

    Raises:
        ConfigError: an override is malformed, the config of one combination is wrong, or two would be the same run; the
            message names it.
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
    """Return overrides after those of the grid, `hydra.sweeper.params`, and the config of the first combination.

    An override of the same key replaces that of the grid. There is no config if an override is wrong.
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
    """Return overrides with `hydra.sweeper.params.KEY=A,B` as `KEY=A,B`, before the others."""
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
    """Return the overrides of a grid, key -> values, without those of the same key as a typed one."""
    keys = {override.get_key_element().lstrip("+~") for override in typed}
    named = {key: ",".join(map(_written, value)) if isinstance(value, list) else value for key, value in grid.items()}
    return [f"{key}={value}" for key, value in named.items() if key.lstrip("+~") not in keys]


def _written(value: Any) -> str:
    """Return a value of YAML as Hydra's grammar writes it; a text that could be read as anything else in quotes."""
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
    """Return the job of a composed config, whose `identity` may be known."""
    packed, subdir = zlib.compress(pickle.dumps(composed)), folder_of(SUBDIR, composed)
    return Job(key or identity(composed.config), tuple(composed.overrides), label, composed.preset, packed, subdir)


def composed_of(job: bytes) -> Composed:
    """Return what the overrides of a job were composed to, by this process or the one that started it."""
    composed: Composed = pickle.loads(zlib.decompress(job))
    return composed


def identity(config: DictConfig) -> str:
    """Return a digest of a composed config without the keys that may change when a run is resumed."""
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
    """Return those of some overrides that a resumed run takes."""
    return [
        override.text
        for override in parse(overrides)
        if any(f"{override.key}.".startswith(f"{key}.") for key in CHANGEABLE)
    ]


def read(text: str) -> Override:
    """Return an override that may have several values, taken apart.

    Raises:
        ConfigError: it is malformed.
    """
    if len(text) > LONGEST:
        parse([text])  # which refuses it
    try:
        return OverridesParser.create().parse_overrides([text])[0]
    except (HydraException, RecursionError):
        parse([text])  # which says what is wrong with it
        raise


def _alternatives(text: str, config_dir: Path | None) -> list[str]:
    """Return an override for each value of an override that may have several."""
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
    """Return the numbers of a range, its end excluded: `range(0.1,0.4,0.1)` has three, as in decimal arithmetic.

    Raises:
        ConfigError: it has no end, or too many numbers.
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
    """Yield the values of an override, if they are finite.

    Raises:
        ConfigError: a pattern among files where there are none.
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

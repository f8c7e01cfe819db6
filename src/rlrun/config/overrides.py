"""The overrides of the command line: `algorithm=sac`, `+with=rnd`, `~callbacks.x`, `seed=3`."""

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from rlrun.config.files import one_line
from rlrun.core.errors import ConfigError

_DECIMAL = re.compile(r"[-+]?0[0-9][0-9_]*")
LONGEST = 20_000  # letters of an override; taking a longer one apart takes long
ADDITIONS = "with"  # the group of which several options can be chosen
_CLOSING = {"[": "]", "{": "}", "(": ")"}


class Override(NamedTuple):
    """An override, taken apart."""

    text: str  # as typed
    sign: str  # "", "+", "++" or "~"
    key: str  # a config key, or a group with or without `@package`
    value: Any  # None for `null` and for `~key`

    @property
    def group(self) -> str:
        """The key without its package."""
        return self.key.split("@")[0]


def parse(overrides: Iterable[str]) -> list[Override]:
    """Return the overrides, each key once: the last one wins; but `+with=rnd +with=scale` is `+with=[rnd,scale]`.

    Raises: ConfigError if an override is malformed or asks for several values, or `overrides` is not a list of texts.
    """
    by_key: dict[str, Override] = {}
    for override in map(_parse, map(str.strip, listed(overrides))):
        before = by_key.pop(override.key, None)
        if override.key == ADDITIONS and override.sign == "+" and before is not None:
            override = _joined([before, override])
        by_key[override.key] = override
    return list(by_key.values())


def listed(overrides: Iterable[str]) -> list[str]:
    """Return overrides as a list; raise ConfigError for anything else."""
    if isinstance(overrides, Iterable) and not isinstance(overrides, str | Mapping):
        overrides = list(overrides)
        if all(isinstance(override, str) for override in overrides):
            return overrides
    raise ConfigError(f'overrides are a list of texts, such as ["algorithm=sac", "seed=3"], got {overrides!r:.60}')


def _joined(overrides: Sequence[Override]) -> Override:
    """Return the last override, which chooses what all of them choose."""
    values = [override.value if isinstance(override.value, list) else [override.value] for override in overrides]
    options = [option for option in dict.fromkeys(chain(*values)) if option is not None]
    return overrides[-1]._replace(value=options, text=f"+{ADDITIONS}=[{','.join(map(str, options))}]")


@functools.lru_cache(4096)  # the jobs of a sweep share most overrides
def _parse(text: str) -> Override:
    if len(text) > LONGEST:
        raise ConfigError(f"'{text[:40]}…': an override has at most {LONGEST:,} letters; a file of conf/ holds more")
    key = text.lstrip("+~").partition("=")[0]
    if not key or ("=" not in text and not text.startswith("~")):
        raise ConfigError(f"'{text}': an override of the command line has the form KEY=VALUE, +KEY=VALUE or ~KEY")
    if key.split(".")[0].split("/")[0] == "hydra":
        raise ConfigError(
            f"{key}: Hydra's own settings play no part here; --run-dir names the run directory, launcher=slurm "
            "the launcher of a sweep, and +sweep=optuna its search"
        )
    try:
        override = OverridesParser.create().parse_overrides([text])[0]
    except HydraException as error:
        raise ConfigError(f"'{text}': {_malformed(text, error)}") from error
    except RecursionError as error:
        raise ConfigError(f"{key}: nested too deeply") from error
    if override.is_sweep_override():
        example = f"; a list is written {key}=[{text.partition('=')[2]}]" if override.is_choice_sweep() else ""
        raise ConfigError(f"'{text}': one run takes one value; a sweep, rlrun train -m, takes several{example}")
    sign = "~" if override.is_delete() else "++" if override.is_force_add() else "+" if override.is_add() else ""
    key = override.key_or_group + (f"@{override.package}" if override.package is not None else "")
    value = override.value()
    quoted = isinstance(value, str) and text.endswith(("'", '"'))
    return Override(text, sign, key, value if quoted else decimal(value))


def decimal(value: Any) -> Any:
    """Read numbers with leading zeros as decimal: `seed=012` is twelve."""
    if isinstance(value, str):
        return int(value.replace("_", "")) if _DECIMAL.fullmatch(value) else value
    if isinstance(value, list):
        return [decimal(item) for item in value]
    if isinstance(value, dict):
        return {key: decimal(item) for key, item in value.items()}
    return value


def _malformed(text: str, error: HydraException) -> str:
    """Say what is wrong with an override that the grammar refuses."""
    for quote in "'\"":
        if text.count(quote) % 2:
            return f"the quote {quote} is not closed"
    open_ones: list[str] = []
    for letter in text:
        if letter in _CLOSING:
            open_ones.append(letter)
        elif letter in _CLOSING.values() and (not open_ones or _CLOSING[open_ones.pop()] != letter):
            return f"'{letter}' closes nothing"
    if open_ones:
        return f"'{open_ones[-1]}' is not closed"
    key, _, value = text.partition("=")
    if "=" in value:
        return f"quote a value that holds '=': {key}='\"{value}\"'"
    return f"cannot be read: {one_line(error)}"


def hydra_overrides(overrides: Sequence[Override]) -> list[Any]:
    """Return overrides that choose from groups in Hydra's own form."""
    texts = []
    for override in overrides:
        names = override.value if isinstance(override.value, list) else [override.value]
        quoted = ",".join(f"'{name}'" for name in names)  # a name such as nan reads as a number otherwise
        value = "" if override.value is None else f"=[{quoted}]" if isinstance(override.value, list) else f"={quoted}"
        texts.append(f"{override.sign}{override.key}{value}")
    return list(OverridesParser.create().parse_overrides(texts))

"""Parse and apply the overrides of a command line: `algorithm=sac`, `+with=rnd`, `~callbacks.x`, `seed=3`."""

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from rlrun.config.files import one_line
from rlrun.config.interpolation import child, children, dotted, plain, split
from rlrun.config.peers import hint
from rlrun.config.schema import FREE, OPEN
from rlrun.core.errors import ConfigError, did_you_mean, shown

_DECIMAL = re.compile(r"[-+]?0[0-9][0-9_]*")
LONGEST = 20_000  # characters of an override; parsing a longer one is slow
ADDITIONS = "with"  # the group that allows several options
_QUOTED = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"")
_MARK = "\ue000"  # prefix of quoted texts during parsing, so that '012' stays a text
_PLAIN = re.compile(r"[\w/\-\\+.$%*@?|:,=~\[\]{} ]", re.ASCII)  # characters of unquoted texts and of the grammar
_CLOSING = {"[": "]", "{": "}", "(": ")"}


CONFIG_NAME = "hydra.job.config_name"  # name of the primary config file
SUBDIR = "hydra.sweep.subdir"  # folder of a sweep's job
NUMBER = "${hydra:job.num}"
FOLDERS = ("hydra.run.dir", "hydra.sweep.dir", SUBDIR)
GRID = "hydra.sweeper.params"


def unused(key: str) -> str:
    """Return the reason why rlrun does not use one of Hydra's own keys."""
    if key.startswith(GRID):
        return "it is for a sweep: rlrun train -m …"
    return (
        f"Hydra's own settings play no part here but {', '.join(FOLDERS)} and {GRID}; "
        "launcher=slurm names the launcher of a sweep, and +sweep=optuna its search"
    )


class Override(NamedTuple):
    """A parsed override."""

    text: str  # as typed
    sign: str  # "", "+", "++" or "~"
    key: str  # a config key, or a group with or without `@package`
    value: Any  # None for `null` and for `~key`

    @property
    def group(self) -> str:
        """The key without its package."""
        return self.key.split("@")[0]


def parse(overrides: Iterable[str]) -> list[Override]:
    """Parse overrides; the last one of each key wins, but `+with=rnd +with=scale` becomes `+with=[rnd,scale]`.

    An override with a dict sets keys, so it may stand beside a choice from the group of the same name.

    Raises: ConfigError if an override is malformed or has several values, or `overrides` is not a list of texts.
    """
    by_key: dict[tuple[str, bool], Override] = {}
    for override in map(_parse, map(str.strip, listed(overrides))):
        key = override.key, isinstance(override.value, dict)
        before = by_key.pop(key, None)
        if override.key == ADDITIONS and override.sign == "+" and before is not None:
            override = _joined([before, override])
        by_key[key] = override
    return list(by_key.values())


def listed(overrides: Iterable[str]) -> list[str]:
    """Return overrides as a list; raise ConfigError for anything else."""
    if isinstance(overrides, Iterable) and not isinstance(overrides, str | Mapping):
        overrides = list(overrides)
        if all(isinstance(override, str) for override in overrides):
            return overrides
    raise ConfigError(f'overrides are a list of texts, such as ["algorithm=sac", "seed=3"], got {overrides!r:.60}')


def _joined(overrides: Sequence[Override]) -> Override:
    """Return the last override with the choices of all of them."""
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
    if key.split(".")[0].split("/")[0] == "hydra" and key not in (CONFIG_NAME, *FOLDERS):
        raise ConfigError(f"{key}: {unused(key)}")
    try:
        marked = _QUOTED.sub(lambda match: f"{match[0][0]}{_MARK}{match[0][1:]}", text)
        override = OverridesParser.create().parse_overrides([marked])[0]
    except HydraException as error:
        raise ConfigError(f"'{text}': {_malformed(text)}") from error
    except RecursionError as error:
        raise ConfigError(f"{key}: nested too deeply") from error
    if override.is_sweep_override():
        example = f"; a list is written {key}=[{text.partition('=')[2]}]" if override.is_choice_sweep() else ""
        raise ConfigError(f"'{text}': one run takes one value; a sweep, rlrun train -m, takes several{example}")
    sign = "~" if override.is_delete() else "++" if override.is_force_add() else "+" if override.is_add() else ""
    key = override.key_or_group + (f"@{override.package}" if override.package is not None else "")
    return Override(text, sign, key, _read(override.value()))


def _read(value: Any) -> Any:
    """Convert numbers with leading zeros as decimals (`seed=012` is twelve), and unmark quoted texts."""
    if isinstance(value, str):
        return int(value.replace("_", "")) if _DECIMAL.fullmatch(value) else value.replace(_MARK, "")
    if isinstance(value, list):
        return [_read(item) for item in value]
    if isinstance(value, dict):
        return {_read(key): _read(item) for key, item in value.items()}
    return value


def _malformed(text: str) -> str:
    """Return the syntax error of an override that the grammar refuses."""
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
    if value.startswith("(") and value.endswith(")"):
        return f"a list is written in brackets: {key}=[{value[1:-1]}]"
    sign = next((letter for letter in _QUOTED.sub("", text) if not _PLAIN.fullmatch(letter)), "")
    if sign in key:
        return f"a key has no '{sign}'" if sign else "cannot be read; quote texts: KEY='\"TEXT\"'"
    inside = {*value} & {*"'\"[{"}
    return f"a text that holds '{sign}' wants double quotes" + ("" if inside else f": {key}='\"{value}\"'")


def apply(config: DictConfig, override: Override, groups: Sequence[str], replaced: Sequence[str] = ()) -> None:
    """Apply an override: set, add or delete a key.

    replaced: keys of parts whose class was replaced; the new class may take keys that the config lacks.

    Raises: ConfigError if the key does not exist, or cannot take the value.
    """
    if "@" in override.key or "/" in override.key:
        raise ConfigError(f"{override.key}: no such group{did_you_mean(override.group, groups)}")
    is_part = isinstance(override.value, dict) and "_target_" in override.value  # it may have keys of its own
    part = is_part and override.key not in FREE
    above = OPEN if override.key.endswith("._target_") else (*OPEN, *replaced)
    within = override.key in (*FREE, "init") or any(override.key.startswith(f"{key}.") for key in above)
    is_open = part or within
    if override.sign == "~" or not (override.sign or within):
        _find(config, override, groups)
    if override.sign != "~":
        _require_keys(config, override, groups)
    there = functools.reduce(child, split(override.key), plain(config))
    if isinstance(there, dict) and isinstance(override.value, list):
        raise ConfigError(f"{override.key}: wanted keys with values, got a list")
    if isinstance(there, list) and isinstance(override.value, dict) and not is_part:
        raise ConfigError(f"{override.key}: wanted a list, got keys with values")
    try:
        if override.sign == "~":
            _delete(config, override)
        elif override.key.startswith("init.") and isinstance(config.get("init"), DictConfig):
            with open_dict(config):
                config.init[override.key.removeprefix("init.")] = override.value  # the part's path is one key with dots
        else:
            merge = isinstance(override.value, (dict, list)) and not (isinstance(there, list) and is_part)
            OmegaConf.update(
                config, override.key, override.value, merge=merge, force_add=bool(override.sign or is_open)
            )
    except OmegaConfBaseException as error:
        raise ConfigError(f"{override.key}: {_inner(config, override) or one_line(error)}") from error


def _find(config: DictConfig, override: Override, groups: Sequence[str]) -> None:
    """Raise ConfigError, with the nearest match, if the override's key does not exist."""
    node = plain(config)
    path = split(override.key)
    for index, key in enumerate(path):
        names = dict(children(node))
        if key not in names:
            if isinstance(node, str) and node.startswith("${"):
                whole = dotted(path[:index])
                own = f"change that instead, or give {whole}={{…}} of its own"
                raise ConfigError(f"{override.key}: '{whole}' is a link to {node}: {own}")
            if isinstance(node, list):
                whole = dotted(path[:index])
                raise ConfigError(f"{whole}: a list of {len(node)} has no '{key}'; give the whole list: {whole}=[…]")
            if isinstance(node, bool):
                raise ConfigError(f"{override.key}: no such key; '{dotted(path[:index])}' itself is true or false")
            if key == "_target_" and not isinstance(node, dict):
                whole, now = dotted(path[:index]), shown(node)
                value = f"'{whole}={{_target_: {override.value}, …}}'"
                raise ConfigError(f"{override.key}: {whole} is {now}, and has no keys; {value} gives it all at once")
            prefix = "".join(f"{part}." for part in path[:index])
            near = did_you_mean(key, [*names, *(groups if not index else ())], prefix)
            what = "no such key" if index or len(path) > 1 else "no such key or group"
            if index == 0 and "/".join(path) in groups and len(path) > 1:
                raise ConfigError(f"{override.key}: no such key (did you mean the group '{'/'.join(path)}'?)")
            if index == 0 and key in groups and len(path) > 1:
                choice = f"+{key}={'optuna' if key == 'sweep' else 'NAME'}"
                raise ConfigError(
                    f"{override.key}: no such key; {key} is a group, and nothing of it is chosen: {choice}"
                )
            if path[0] == "networks" and index == 1:
                raise ConfigError(f"{override.key}: {what}{near or '; there are ' + ', '.join(names)}")
            part = isinstance(node, dict) and ("_target_" in node or path[:index] == ("callbacks",))
            part = part or override.key == "expect.return"
            if path[0] == "env" and index == 1:
                near = near or f"; an argument of the environment is env.kwargs.{key}=…"
            near = near or (f"; +{override.key}=… adds one" if part else f"; there are {', '.join(names) or 'none'}")
            raise ConfigError(f"{override.key}: {what}{hint(path, plain(config), near, override.value)}")
        node = names[key]


def _require_keys(config: DictConfig, override: Override, groups: Sequence[str]) -> None:
    """Refuse to replace a part by a class path, or a top-level part by a number or text, with a ConfigError."""
    node, value = functools.reduce(child, split(override.key), plain(config)), override.value
    scalar = isinstance(value, (bool, int, float)) or (isinstance(value, str) and "${" not in value)
    if scalar and isinstance(node, dict) and "_target_" in node and (is_class(value) or "." not in override.key):
        others = [name for name in (*plain(config), *groups) if name != override.key]
        way_out = f"; {override.key}._target_={value if is_class(value) else 'CLASS'} replaces it"
        near = way_out if is_class(value) else did_you_mean(override.key, others) or way_out
        raise ConfigError(f"{override.key}: wanted the keys of {node['_target_']}, got {value!r}{near}")


def is_class(value: Any) -> bool:
    """Return True if a value looks like the import path of a class."""
    return isinstance(value, str) and "." in value and all(name.isidentifier() for name in value.split("."))


def _delete(config: DictConfig, override: Override) -> None:
    *parents, last = split(override.key)
    parent = OmegaConf.select(config, dotted(tuple(parents))) if parents else config
    if "=" in override.text and parent[last] != override.value:  # ~key=value deletes only that value
        raise ConfigError(f"~{override.key}: its value is {parent[last]}, not {override.value}")
    if not isinstance(parent, DictConfig):
        raise ConfigError(f"~{override.key}: an entry of a list cannot be deleted; give the whole list")
    with open_dict(parent):
        del parent[last]


def _inner(config: DictConfig, override: Override) -> str:
    """Return a message if an override's dict has an unknown key; otherwise ""."""
    node = OmegaConf.select(config, override.key, throw_on_resolution_failure=False)
    if not isinstance(node, DictConfig) or not isinstance(override.value, dict):
        return ""
    for key in override.value:
        if key not in node:
            return f"no such key '{key}'{did_you_mean(str(key), map(str, node))}"
    return ""

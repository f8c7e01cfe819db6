"""Types and ranges of the config keys that every run has."""

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any

from rlrun.config.interpolation import child, children, dotted, locate, plain, split
from rlrun.core.errors import ConfigError, did_you_mean, shown

# Blocks in which users add keys without `+`.
FREE = ("notes", "resolvers")  # all of their keys are the user's
VARIED = ("kwargs", "reset_options")  # blocks of `env`, and of evaluations
OPEN = (
    *(f"{env}.{name}" for env in ("env", "evaluation.env") for name in VARIED),
    *("init", "evaluation.opponents"),
    *("optimizer.groups", "optimizer.additions"),
    *FREE,
)
# Keys that a resume may change. Training does not depend on them, except on the machine and on a budget that it reads.
CHANGEABLE = (
    *("stop", "evaluation", "checkpoint", "logger", "log", "memory.export"),
    *("device", "threads", "env.vectorization", "notes"),
)
SETTINGS = ("stop", "evaluation", "checkpoint", "log")  # blocks in which only known keys are allowed


@dataclass(frozen=True)
class Kind:
    """A kind of value: `convert` returns the value or raises ValueError; `json` is its JSON schema."""

    wanted: str  # "a whole number from 0"
    convert: Callable[[Any], Any]
    json: Mapping[str, Any] = field(default_factory=dict)


# Editors read YAML 1.2, in which 5_000 is a text.
NUMBER = {
    "anyOf": [
        {"type": "number"},
        {"type": "string", "pattern": r"^[-+]?(\d[\d_]*)?\.?[\d_]*([eE][-+]?\d+)?$|^[-+]?\.(inf|nan)$"},
    ]
}


def whole(least: int = 0) -> Kind:
    """A whole number from `least`, also written as 1e6."""

    def convert(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value) or value < least:
            raise ValueError
        return int(value)

    text = {"type": "string", "pattern": r"^\d[\d_]*(e\d+)?$"}
    return Kind(f"a whole number from {least}", convert, {"anyOf": [{"type": "integer", "minimum": least}, text]})


def number(least: float | None = None, most: float | None = None, *, above: bool = False) -> Kind:
    """A finite number within bounds; `above` excludes the lower one."""

    def convert(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value - value != 0:
            raise ValueError
        if least is not None and (value < least or (above and value == least)):
            raise ValueError
        if most is not None and value > most:
            raise ValueError
        return value

    overrides = "a number" + ("" if least is None else f" above {least}" if above else f" from {least}")
    bounds: dict[str, Any] = {} if least is None else {"exclusiveMinimum" if above else "minimum": least}
    bounds |= {} if most is None else {"maximum": most}
    json = {"anyOf": [{"type": "number", **bounds}, NUMBER["anyOf"][1]]}
    return Kind(overrides + ("" if most is None else f" to {most}"), convert, json)


def of_type(overrides: str, *types: type) -> Kind:
    """A value of one of these types."""

    def convert(value: Any) -> Any:
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise ValueError
        return value

    names = {bool: "boolean", str: "string", dict: "object", list: "array", NoneType: "null"}
    return Kind(overrides, convert, {"type": [names[entry] for entry in types]})


def one_of(*names: str) -> Kind:
    """One of a few words."""

    def convert(value: Any) -> Any:
        if value not in names:
            raise ValueError
        return value

    return Kind("one of " + ", ".join(names), convert, {"enum": list(names)})


def either(*kinds: Kind) -> Kind:
    """A value of any of several kinds; the first one that accepts it converts it."""

    def convert(value: Any) -> Any:
        for kind in kinds:
            try:
                return kind.convert(value)
            except ValueError:
                continue
        raise ValueError

    json = {"anyOf": [kind.json for kind in kinds]}
    return Kind(" or ".join(kind.wanted for kind in kinds), convert, json)


def each(kind: Kind) -> Kind:
    """A mapping from names to values of one kind."""

    def convert(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise ValueError
        return {str(name): converted(f"'{name}'", entry, kind) for name, entry in value.items()}

    json = {"type": "object", "additionalProperties": kind.json}
    return Kind(f"names, each with {kind.wanted}", convert, json)


def _list_of_names(value: Any) -> Any:
    if value is None:
        return []
    entries = [value] if isinstance(value, (str, Mapping)) else value
    if not isinstance(entries, list) or not all(isinstance(entry, (str, Mapping)) for entry in entries):
        raise ValueError
    return entries


def _list_of_texts(value: Any) -> Any:
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise ValueError
    return value


def list_of(wanted: str, kind: Kind, *, or_one: bool = False) -> Kind:
    """A non-empty list of values of one kind; with `or_one`, a single value becomes a list."""

    def convert(value: Any) -> Any:
        entries = [value] if or_one and not isinstance(value, list) else value
        if not isinstance(entries, list) or not (entries or or_one):
            raise ValueError
        return [kind.convert(entry) for entry in entries]

    entries = {"type": "array", "items": kind.json, **({} if or_one else {"minItems": 1})}
    return Kind(wanted, convert, {"anyOf": [entries, kind.json]} if or_one else entries)


def _runs(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise ValueError
    for name, run in value.items():
        if isinstance(run, Mapping):
            raise ConfigError(f"'{name}': a name keeps its dots: wanted {{{name}.{next(iter(run), 'PART')}: RUN}}")
        if name != "strict" and run is not None and not (isinstance(run, str) and run):
            raise ConfigError(f"'{name}': wanted a run (RUN, RUN@STEP, RUN@best, RUN:PART) or null, got {shown(run)}")
    return dict(value)


DEVICE = r"auto|cpu|(?:cuda|mps|xpu)(?::\d+)?"


def _device(value: Any) -> Any:
    if not isinstance(value, str) or not re.fullmatch(DEVICE, value):
        raise ValueError
    return value


NULL = of_type("null", NoneType)
WIDTHS = list_of("a list of whole numbers from 1", whole(1), or_one=True)
TRUTH = of_type("true or false", bool)
TEXT = of_type("a text", str)
TEXTS = list_of("a list of texts", TEXT)
BLOCK = of_type("keys with values", dict)
RUNS = Kind(
    "parts with the run of each ({networks: RUN})",
    _runs,
    {"type": "object", "properties": {"strict": TRUTH.json}, "additionalProperties": {"type": ["string", "null"]}},
)
CORE = "{_target_: rlrun.nn.MemoryCore, _partial_: true}"
_recurrent = either(one_of("gru", "lstm"), NULL)

KINDS: dict[str, Kind] = {
    "seed": whole(),
    "notes": BLOCK,
    "resolvers": each(TEXT),
    "num_envs": whole(1),
    "stop.env_steps": either(whole(), NULL),
    "stop.updates": either(whole(), NULL),
    "stop.seconds": either(number(0), NULL),
    "stop.mean_return": either(number(), NULL),
    "stop.validation": either(number(), NULL),
    "expect.return": either(number(), NULL),
    "evaluation.every": either(whole(), NULL),
    "evaluation.episodes": whole(1),
    "evaluation.max_steps": either(whole(1), NULL),
    "evaluation.num_envs": either(whole(1), NULL),
    "evaluation.epsilon": number(0.0, 1.0),
    "evaluation.async": TRUTH,
    "evaluation.video": TRUTH,
    "evaluation.env": BLOCK,
    "evaluation.opponents": either(BLOCK, NULL),
    **{f"evaluation.env.{name}": either(BLOCK, NULL) for name in VARIED},
    "checkpoint.every": either(whole(), NULL),
    "checkpoint.seconds": either(number(0), NULL),
    "checkpoint.keep_last": either(whole(1), NULL),
    "checkpoint.memory": TRUTH,
    "checkpoint.parts": either(TEXTS, NULL),
    "checkpoint.keep_best": either(TRUTH, whole(), NULL),
    "log.every": either(whole(), NULL),
    "log.networks": TRUTH,
    "log.code": either(Kind("a list of file names", _list_of_texts, {"type": "array", "items": TEXT.json}), NULL),
    "log.axis": one_of("env_steps", "updates", "samples"),
    "logger": Kind("a list of loggers", _list_of_names),
    "device": Kind("one of auto, cpu, cuda, cuda:1, mps, xpu", _device, {"type": "string", "pattern": f"^({DEVICE})$"}),
    "threads": whole(1),
    "precision": one_of("highest", "high", "medium", "bf16"),
    "compile": TRUTH,
    "init": RUNS,
    "init.strict": TRUTH,
    "env.id": either(TEXT, NULL),
    "env.target": either(TEXT, NULL),
    "env.kwargs": either(BLOCK, NULL),
    "env.reset_options": either(BLOCK, NULL),
    "env.wrappers": either(of_type("a list", list), NULL),
    "env.around": either(BLOCK, NULL),
    "env.vectorization": one_of("auto", "sync", "async", "native", "envpool", "by_id"),
    "algorithm.discount": either(number(0, 1), list_of("a list of numbers from 0 to 1", number(0, 1))),
    "lagrangian.initial": either(number(0, above=True), list_of("a list of numbers", number())),
    "algorithm.recurrent": Kind(f"gru, lstm, null or {CORE}", _recurrent.convert, _recurrent.json),
    "algorithm.entropy_reward": either(TRUTH, Kind("centered", one_of("centered").convert, {"enum": ["centered"]})),
    "algorithm.lr": number(0, above=True),
    "algorithm.batch_size": whole(1),
    "algorithm.hidden": WIDTHS,
    "algorithm.dynamics": either(WIDTHS, BLOCK),
    "algorithm.prediction": either(WIDTHS, BLOCK),
    "muzero_representation.hidden": WIDTHS,
    "muzero_representation.dynamics": either(WIDTHS, BLOCK),
    "muzero_representation.prediction": either(WIDTHS, BLOCK),
    "encoder.images.padding": either(whole(), list_of("a list of whole numbers from 0", whole())),
    "encoder.signals.padding": either(whole(), list_of("a list of whole numbers from 0", whole())),
    "algorithm.ensemble": whole(1),
    "algorithm.n_step": whole(1),
    "algorithm.tau": number(0, 1),
    "algorithm.vae_hidden": WIDTHS,
    "curl.tau": number(0, 1),
    "curl.leaves": either(TEXTS, NULL),
    "curl.projection": either(whole(1), NULL),
    "curl.views": BLOCK,
    "spr.tau": number(0, 1),
    "spr.steps": whole(1),
    "spr.projection": either(whole(1), NULL),
    "spr.views": BLOCK,
    "spr.leaves": either(TEXTS, NULL),
    "spr.hidden": WIDTHS,
    "algorithm.policy_every": whole(1),
    "algorithm.target_every": whole(1),
    "algorithm.max_grad_norm": either(number(0, above=True), NULL),
    "algorithm.action_gradient_clip": either(number(0, above=True), NULL),
    "algorithm.warmup_steps": whole(),
    "algorithm.updates_per_step": either(number(0, above=True), NULL),
    "algorithm.steps_per_update": either(number(0), NULL),  # 0: with an asynchronous collector
    "algorithm.collect_steps": whole(1),
    "memory.import": either(TEXT, TEXTS, NULL),
    "offline.limit": either(whole(1), NULL),
    "offline.own_every": whole(1),
    "memory.export.every": either(whole(), NULL),
    "memory.export.min_seconds": number(0),
    "memory.export.path": either(TEXT, NULL),
    "memory.export.public": TRUTH,
    "memory.export.layout": one_of("rlrun", "emote"),
    "memory.length": either(whole(1), NULL),
    "memory.min_length": whole(1),
    "memory.short": one_of("skip", "pad"),
    "memory.frame_stack": whole(1),
    "memory.storage": one_of("ram", "disk"),
    "memory.directory": TEXT,
}


def require_memory(config: Any) -> None:
    """Raise ConfigError if a memory has an import or export whose callback is switched off."""
    tree = plain(config)
    callbacks = tree.get("callbacks")
    for key in ("import", "export"):
        value = _value(tree, f"memory.{key}")
        wanted = [value.get("every"), value.get("path")] if isinstance(value, Mapping) else [value]
        off = isinstance(callbacks, Mapping) and f"memory_{key}" in callbacks and callbacks[f"memory_{key}"] is None
        if off and value is not _UNKNOWN and any(entry is not None for entry in wanted):
            raise ConfigError(f"memory.{key}: this run keeps no memory for it; algorithms with memory=replay do")


def check_kinds(config: Any) -> dict[str, Any]:
    """Check the values of all known keys; return those that are converted, such as `1e6` to an int, by key.

    Raises: ConfigError if a value has the wrong type or is out of range.
    """
    tree = plain(config)
    changed = {}
    _check_closed(tree)
    for key, kind in KINDS.items():
        value = _value(tree, key)
        if value is _UNKNOWN:
            continue
        result = converted(key, value, kind)
        if repr(result) != repr(value):  # also [1e2], whose entries become whole numbers
            changed[key] = result
    return changed


def converted(key: str, value: Any, kind: Kind) -> Any:
    """Return a value converted to the kind that its key takes.

    Raises: ConfigError if it has the wrong type or is out of range.
    """
    try:
        return kind.convert(value)
    except (ValueError, OverflowError):
        choices = filter(str.isidentifier, kind.wanted.removeprefix("one of ").split(", "))
        near = did_you_mean(value, choices) if isinstance(value, str) else ""
        raise ConfigError(f"{key}: wanted {kind.wanted}, got {shown(value)}{near}") from None
    except ConfigError as error:  # an error about one entry
        raise ConfigError(f"{key}: {error}") from None


def _check_closed(tree: Any) -> None:
    for block in SETTINGS:
        if block in tree and not isinstance(tree[block], Mapping):
            off = f"; {block}.every=0 turns it off" if f"{block}.every" in KINDS else ""
            raise ConfigError(f"{block}: wanted keys with values, got {shown(tree[block])}{off}")
    for key, _ in children(child(tree.get("evaluation"), "env")):
        if key not in VARIED:
            raise ConfigError(f"evaluation.env.{key}: no such key; there are {' and '.join(VARIED)}, merged over env's")


_UNKNOWN: Any = object()


def _value(tree: Any, key: str) -> Any:
    """Return a key's value; `_UNKNOWN` if it is absent, `???`, or an attribute of an object."""
    *parents, last = split(key)
    node = tree
    for parent in parents:
        node = child(node, parent)
    entries = node if isinstance(node, Mapping) else {}
    if last not in entries:
        return _UNKNOWN
    place = locate(tree, (*parents, last), referrer=split(key))
    text = isinstance(place.node, str) and (place.node == "???" or "${" in place.node)
    built = isinstance(place.node, Mapping) and "_target_" in place.node
    return _UNKNOWN if text or built or place.beyond else place.node


@functools.cache
def known(block: str) -> tuple[str, ...]:
    """Return the known keys of a block."""
    return tuple(dotted(split(key)[1:]) for key in KINDS if split(key)[0] == block)

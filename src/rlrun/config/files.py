"""Read one YAML file, with an error that names the line."""

import re
from pathlib import Path
from typing import Any

import yaml

from rlrun.core.errors import ConfigError

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C parser is ten times as fast

_INT = re.compile(r"^[-+]?(?:[0-9][0-9_]*|0x[0-9a-fA-F_]+|0b[01_]+)$")
_FLOAT = re.compile(
    r"^[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+|\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?"
    r"|\.inf|\.Inf|\.INF)$|^\.(?:nan|NaN|NAN)$"
)


class _Loader(_Base):  # type: ignore[misc]
    """Loads YAML with intuitive numbers: 012 is twelve, 1e-3 a float, 12:30 a string. Duplicate keys are errors."""

    # Everything but int, float and timestamp stays as in YAML 1.1.
    yaml_implicit_resolvers = {
        first: [pair for pair in pairs if pair[0].rsplit(":", 1)[1] not in ("int", "float", "timestamp")]
        for first, pairs in _Base.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key is a single word", key.start_mark)
            if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(None, None, f"key '{key.value}' is there twice", key.start_mark)
            seen.add(key.value)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return mapping


def _whole(loader: Any, node: yaml.ScalarNode) -> int:
    text = str(node.value).replace("_", "")
    return int(text, 0 if re.match(r"[-+]?0[xb]", text) else 10)


_Loader.add_implicit_resolver("tag:yaml.org,2002:int", _INT, list("-+0123456789"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))
_Loader.add_constructor("tag:yaml.org,2002:int", _whole)


def one_line(error: BaseException | str) -> str:
    """Return an error's message without its line breaks and Hydra's appendices."""
    text = str(error).split("\nSee http")[0].split("Config search path:")[0].split("\n    full_key:")[0]
    return re.sub(r"KeyError raised while resolving interpolation: \"(Env.*)\"", r"\1", " ".join(text.split()))


def read_yaml(path: Path, label: str | None = None) -> dict[str, Any]:
    """Return the mapping in a YAML file.

    Raises: ConfigError with file and line if it is not YAML, or not a mapping.
    """
    place = label or str(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{place}: cannot be read: {' '.join(str(error).split())}") from error
    return parse_yaml(text, place)


def parse_yaml(text: str, place: str) -> dict[str, Any]:
    """Return the mapping in a YAML text.

    Raises: ConfigError with the place and the line if it is not YAML, or not a mapping.
    """
    try:
        content = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        start = "".join(text.splitlines()[mark.line : mark.line + 1])[: mark.column + 1] if mark else ""
        problem = "a tab, where YAML wants spaces" if "\t" in start and not start.strip() else problem
        raise ConfigError(f"{place}{line}: not valid YAML: {problem}") from error
    except ValueError as error:  # a value that does not fit its tag
        raise ConfigError(f"{place}: not valid YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{place}: wanted keys with values, got a {type(content).__name__}")
    return content

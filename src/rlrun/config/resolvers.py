"""What `${name:…}` in a config calls: code that any package may register."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rlrun.config.interpolation import Path, dotted, leaves
from rlrun.core.errors import ConfigError
from rlrun.security import trust

MOST = 20  # interpolations in one text; reading them takes a stack as deep as they are nested


def admit_resolvers(text: Any, place: str) -> None:
    """Let a config use the resolvers that a text names.

    Raises: ConfigError if one is refused, or the text is nothing but interpolations.
    """
    if not isinstance(text, str) or "${" not in text or not trust.is_limited():
        return
    if text.count("${") > MOST:
        raise ConfigError(f"{place}: more than {MOST} interpolations in one text")
    for name in resolvers(text):
        trust.admit_resolver(name, text, place)


def admit_all_resolvers(tree: Any) -> None:
    """Let a config use all the resolvers that it names.

    Raises: ConfigError if one is refused.
    """
    for path, value in _texts(tree) if trust.is_limited() else ():
        admit_resolvers(value, dotted(path))


def _texts(node: Any, here: Path = ()) -> Iterator[tuple[Path, Any]]:
    for path, value in leaves(node, here):
        if isinstance(value, list):
            for index, entry in enumerate(value):
                yield from _texts(entry, (*path, str(index)))
        else:
            yield path, value


def resolvers(text: str) -> Iterator[str]:
    """Yield the text between each `${` and its colon; a computed name is yielded as it is written."""
    start = text.find("${")
    while start >= 0:
        depth, end = 0, start + 2
        while end < len(text) and (depth or text[end] not in ":}"):
            depth += text.startswith("${", end) - (text[end] == "}")
            end += 1
        if end < len(text) and text[end] == ":":
            yield text[start + 2 : end].strip()
        start = text.find("${", start + 2)

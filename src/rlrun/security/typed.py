"""What a user typed or wrote in files of their own: its texts, and the names of code among them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

NAME = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)+")  # my_package.MyEnv
ID = re.compile(r"([^\W\d][\w.]*):.+")  # my_package:Id


def texts(tree: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield every text in a nest of values, after the last name of its key."""
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            yield from texts(value, str(name).rpartition(".")[2])
    elif isinstance(tree, list):
        for value in tree:
            yield from texts(value, key)
    elif isinstance(tree, str):
        yield key, tree


def names(tree: Any) -> Iterator[str]:
    """Yield what the texts could import: names as a whole, and the package of an `id`.

    A name inside a text, a path or a pattern is not an import.
    """
    for key, text in texts(tree):
        if NAME.fullmatch(text):
            yield text
        elif key == "id" and (match := ID.fullmatch(text)):
            yield match[1]

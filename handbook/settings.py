"""Every key of a YAML file with its meaning, which stands in a comment beside it or in a docstring."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from handbook import docstrings
from rlrun.config.build import find_target

CONF = Path(__file__).parents[1] / "conf"
COMMENT = re.compile(r"(?:^|\s)# (.*)$")
REFERENCE = re.compile(r"\$\{([\w.]+)\}")
LONGEST = 60


@dataclass(frozen=True)
class Setting:
    """A key.

    Attributes:
        path: from the top of a config, `algorithm.lr`.
        value: as it is written.
        meaning: "" where nothing says it.
    """

    path: str
    value: str
    meaning: str


def settings(file: Path) -> list[Setting]:
    """Return the keys of a file of `conf/` in its order; what its own lines leave open, the other files say."""
    said = _said()
    return [each if each.meaning else replace(each, meaning=_elsewhere(each, said)) for each in _own(file)]


def _elsewhere(setting: Setting, said: dict[str, str]) -> str:
    if setting.value == "null" and _is_part(setting.path):
        return "none here"
    if setting.path in said:
        return said[setting.path]
    found = REFERENCE.fullmatch(setting.value)
    return f"that of `{found[1]}`" if found else ""


def _is_part(path: str) -> bool:
    return path in ("env", "memory", "collector") or path.startswith("callbacks.")


@cache
def _said() -> dict[str, str]:
    """Return what is said of each path, by the first file that does; train.yaml is the first of all."""
    files = [CONF / "train.yaml", *sorted(path for path in CONF.rglob("*.yaml") if path.name != "train.yaml")]
    said: dict[str, str] = {}
    for file in files:
        for each in _own(file):
            if each.meaning:
                said.setdefault(each.path, each.meaning)
    return said


@cache
def _own(file: Path) -> tuple[Setting, ...]:
    text = file.read_text()
    grouped = file.parent != CONF and "# @package _global_" not in text
    return tuple(_Reader(text.splitlines()).walk(yaml.compose(text), file.parent.name if grouped else "", {}))


class _Reader:
    """Walks one file.

    Args:
        lines: of it.
    """

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def walk(self, node: Any, path: str, documented: dict[str, str]) -> Iterator[Setting]:
        """Yield the keys below a node, of which its own docstring says what is in `documented`."""
        documented = self._documented(node) or documented
        for key, value in node.value:
            name = key.value
            if name == "defaults" or name.startswith("_"):
                continue
            here = f"{path}.{name}" if path else name
            comment = self._comment(key, value)
            below = isinstance(value, yaml.MappingNode) and value.value and not value.flow_style
            target = _target(value) if below else None
            if target:
                yield Setting(here, target, comment or docstrings.summary(find_target(target, here)))
            elif not below:
                yield Setting(here, _written(value), comment or documented.get(name, ""))
            elif comment:
                yield Setting(here, "", comment)
            if below:
                yield from self.walk(value, here, {})

    def _documented(self, node: Any) -> dict[str, str]:
        target = _target(node)
        if not target:
            return {}
        names = [key.value for key, _ in node.value]
        if not target.startswith("rlrun."):
            return dict.fromkeys(names, f"of `{target}`")
        return docstrings.arguments(find_target(target, "conf/"))

    def _comment(self, key: Any, value: Any) -> str:
        """Return what stands behind a key or its value on the same line."""
        block = isinstance(value, yaml.CollectionNode) and not value.flow_style
        end = key.end_mark if block else value.end_mark
        found = COMMENT.search(self.lines[end.line][end.column :])
        return found[1] if found else ""


def _target(node: Any) -> str | None:
    """Return what a node is built by; None where it is no part, or is chosen elsewhere."""
    found = next((value.value for key, value in node.value if key.value == "_target_"), None)
    return None if found == "???" else found


def _written(node: Any) -> str:
    """Return a value as its file has it, on one line."""
    start, end = node.start_mark, node.end_mark
    text = " ".join(start.buffer[start.pointer : end.pointer].split()) or "null"
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"

"""Complete overrides from the YAML files alone, without importing Hydra or torch."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rlrun import config as configuration
from rlrun.core.errors import ConfigError

if TYPE_CHECKING:
    from rlrun.config.places import ConfigFolder

BREAKS = frozenset("=:@")  # characters at which bash splits a word of the command line
PLAIN = re.compile(r"[\w.+/-]+")  # text that needs no quotes in a shell
PACKAGE = re.compile(r"^#\s*@package\s+(\S+)", re.MULTILINE)
_before: list[str] = []  # the part of the current word that bash has split off


def join_words() -> None:
    """Join the words that bash has split at `=`, `:` and `@`, so that typer reads whole overrides.

    Of the current word only the last part is left in place, because bash replaces only that part.
    """
    if os.environ.get("_RLRUN_COMPLETE") != "complete_bash":
        return
    words, current = os.environ.get("COMP_WORDS", "").split("\n"), int(os.environ.get("COMP_CWORD", 0))
    words = [*words, *[""] * (current + 1 - len(words))][: current + 1]
    joined: list[str] = []
    for index, word in enumerate(words):
        if joined and joined[-1] and _goes_on(words[index - 1], word, words[index + 1 : index + 2]):
            joined[-1] += word
        else:
            joined.append(word)
    part = "" if BREAKS.issuperset(words[-1]) else words[-1]
    before = joined[-1].removesuffix(part)
    if before.startswith("-"):  # an option: typer expects its value as a separate word
        joined[-1] = before.rstrip("=")
    _before[:] = [before]
    earlier = joined if before.startswith("-") and before != joined[-1] else joined[:-1]
    os.environ |= {"COMP_WORDS": "\n".join([*earlier, part]), "COMP_CWORD": str(len(earlier))}


def _goes_on(before: str, word: str, after: list[str]) -> bool:
    """Return True if `word` continues the word of `before`; after `KEY=`, a part followed by `=` is a new key."""
    if not word or not (before and BREAKS.issuperset(before)):
        return bool(word) and BREAKS.issuperset(word)
    return not (before == "=" and after == ["="])


def complete(context: typer.Context, incomplete: str) -> list[str]:
    """Return completions of an override; in bash, without the part of the word that bash has split off."""
    overrides, config_dir = context.params.get("overrides") or [], context.params.get("config_dir")
    before = "".join(_before)
    try:
        texts = candidates(before + incomplete, overrides, config_dir)
        if _before and len(texts) == 1 and texts[0][-1] in "=.":  # bash would add a space after a single completion
            further = candidates(texts[0], overrides, config_dir)
            texts = further if len(further) > 1 else [*texts, *(further or [f"{texts[0]}VALUE"])]
    except (ConfigError, OSError):  # no completions; the command itself will report the error
        return []
    return [text.removeprefix(before) for text in texts]


def candidates(incomplete: str, overrides: Sequence[str] = (), config_dir: Path | None = None) -> list[str]:
    """Return the overrides that begin with a text: groups and keys, or values after `=`.

    Args:
        incomplete: the text.
        overrides: earlier ones, which choose the files with the known keys.
        config_dir: value of `--config-dir`.
    """
    name, equals, value = incomplete.partition("=")
    mark = name[: len(name) - len(name.lstrip("+~"))]
    key, groups = name.removeprefix(mark), configuration.group_names(config_dir)
    if equals:
        head = value[: max(value.rfind(","), value.rfind("[")) + 1]  # earlier values in a list
        values = [*configuration.choices(key.partition("@")[0], config_dir)] or _values(key, overrides, config_dir)
        return [f"{name}={head}{text}" for text in values if text.startswith(value.removeprefix(head))]
    *parents, last = key.split(".")
    node: Any = composed(overrides, config_dir)
    for parent in parents:
        node = node.get(parent) if isinstance(node, Mapping) else None
    entries = dict(node) if isinstance(node, Mapping) else {}
    tops = groups if not parents else []
    names = [entry for entry in dict.fromkeys([*tops, *entries]) if isinstance(entry, str) and entry.startswith(last)]
    visible = [entry for entry in names if PLAIN.fullmatch(entry) and (last.startswith("_") or entry[0] != "_")]
    ends = {entry: _ends(mark, entry in tops, entries.get(entry)) for entry in visible}
    return [f"{mark}{'.'.join([*parents, entry])}{end}" for entry in visible for end in ends[entry]]


def _ends(mark: str, is_group: bool, value: Any) -> Iterator[str]:
    """Yield the texts that may follow a key: `=`, or `.` before a key below it; "" if `~` deletes the key."""
    block = isinstance(value, Mapping)
    if mark == "~":
        yield ""
    elif is_group or not block or not value:
        yield "="
    if block and (value or not is_group):
        yield "."


def _values(key: str, overrides: Sequence[str], config_dir: Path | None) -> list[str]:
    """Return the words that a key takes as values, and its current value."""
    node: Any = composed(overrides, config_dir)
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    kind = configuration.KINDS.get(key)
    words: list[Any] = [node] if isinstance(node, str | int | float) else []
    words += kind.wanted.removeprefix("one of ").split(", ") if kind and kind.wanted.startswith("one of ") else []
    for form in kind.json.get("anyOf", [kind.json]) if kind else ():
        kinds = form.get("type", [])
        words += [*form.get("enum", []), *[True, False] * ("boolean" in kinds), *[None] * ("null" in kinds)]
    words += [True, False] * isinstance(node, bool)
    texts = ("null" if word is None else str(word).lower() if isinstance(word, bool) else str(word) for word in words)
    return [text for text in dict.fromkeys(texts) if PLAIN.fullmatch(text)]


def composed(overrides: Sequence[str], config_dir: Path | None = None) -> dict[str, Any]:
    """Return the keys of `train.yaml` with the files that overrides choose; values stay as written, also links.

    Unreadable files count as empty, so that completion still works for the others.
    """
    pairs = (override.lstrip("+").partition("=") for override in overrides)
    typed = {group: re.findall(r"[^\[\],\s]+", names) for group, _, names in pairs}
    files = Files(configuration.search_path(config_dir), typed)
    files.add("train", "", "_global_")
    files = Files(files.places, files.choices | typed)  # again, as a file may replace an earlier choice
    files.add("train", "", "_global_")
    for group in ("with", "preset", "sweep"):
        for name in typed.get(group, ()):
            files.add(name, group, group)
    return files.tree


class Files:
    """Merges config files into one tree.

    Attributes:
        places: folders that are searched for files.
        choices: group -> names of files.
        tree: the merged keys.
    """

    def __init__(self, places: Sequence[ConfigFolder], choices: Mapping[str, list[str]]) -> None:
        self.places = places
        self.choices = dict(choices)
        self.tree: dict[str, Any] = {}
        self._open: list[Path] = []  # files that are being read, each included by the previous one

    def add(self, name: str, group: str, package: str) -> None:
        """Merge a file of a group, and the files in its defaults list."""
        within = f"{group}/{name}.yaml".lstrip("/")
        ours = within.removeprefix("rlrun/")
        paths = [place.path / (ours if place.packaged else within) for place in self.places]
        path = next((path for path in paths if path.is_file() and path not in self._open), None)
        if path is None:
            return
        try:
            content = configuration.read_yaml(path)
            header = PACKAGE.search(path.read_text(encoding="utf-8").partition("\n\n")[0])
        except (ConfigError, OSError, UnicodeDecodeError):
            return
        package = header[1] if header else package
        entries = content.pop("defaults", None) or []
        self._open.append(path)
        for entry in entries if "_self_" in entries else [*entries, "_self_"]:
            if entry == "_self_":
                _merge(self.tree, _inside(content, package))
            else:
                self._include(entry, group)
        self._open.pop()

    def _include(self, entry: Any, group: str) -> None:
        """Merge the files of an entry of a defaults list.

        It is `NAME`, `/GROUP/NAME`, or `GROUP: NAME`, perhaps after `override` or `optional`.
        """
        key, chosen = next(iter(entry.items())) if isinstance(entry, Mapping) else (entry, None)
        *words, key = str(key).split()
        key, _, package = key.partition("@")
        key = key.lstrip("/") if key.startswith("/") or not group else f"{group}/{key}"
        if not isinstance(entry, Mapping):
            key, _, chosen = key.rpartition("/")
        elif "override" in words:
            self.choices[key] = [str(name) for name in (chosen if isinstance(chosen, list) else [chosen])]
            return
        else:
            chosen = self.choices.get(key, chosen)
        for name in chosen if isinstance(chosen, list) else [chosen]:
            if isinstance(name, str) and name not in ("???", "null"):
                self.add(name, key, package or key.removeprefix("rlrun/"))


def _inside(content: dict[str, Any], package: str) -> dict[str, Any]:
    """Return a file's content below the keys of its package."""
    for part in reversed([] if package in ("", "_global_") else re.split(r"[./]", package)):
        content = {part: content}
    return content


def _merge(tree: dict[str, Any], content: Mapping[str, Any]) -> None:
    for key, value in content.items():
        if isinstance(value, Mapping):
            below = tree.setdefault(key, {})
            if not isinstance(below, dict):
                below = tree[key] = {}
            _merge(below, value)
        else:
            tree[key] = value

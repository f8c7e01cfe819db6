"""What to tell where nothing of a parent has a name that the new run knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

SHOWN = 3  # names on each side
LOOKED_AT = 1_000  # names on each side, for the nearest renaming


def names_differ(tensors: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Return what names there are, what names are wanted, and the `init.rename` that brings most together.

    Args:
        tensors: of the parent, by name.
        wanted: tensors of networks here, by full name.
    """
    renaming = nearest_renaming(tensors, wanted)
    way_out = "" if renaming is None else f"; try 'init.rename={{{renaming[0]}: {renaming[1]}}}'"
    return f"it holds {_some(tensors)}, wanted are {_some(wanted)}{way_out}"


def nearest_renaming(tensors: Mapping[str, Any], wanted: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the prefix there and the prefix here that give most tensors a place; None where no two names end alike."""
    fitting: Counter[tuple[str, str]] = Counter()
    alike: Counter[tuple[str, str]] = Counter()
    there = [(name.split("."), tensors[name]) for name in list(tensors)[:LOOKED_AT]]
    for name in list(wanted)[:LOOKED_AT]:
        here, tensor = name.split("."), wanted[name]
        for path, value in there:
            same = _alike(path, here)
            if same and same < len(here):
                pair = ".".join(path[: len(path) - same]), ".".join(here[: len(here) - same])
                alike[pair] += 1
                fitting[pair] += value.shape == tensor.shape
    best = max(alike, key=lambda pair: (fitting[pair], alike[pair]), default=None)
    if best is None:
        return None
    old, new = best
    return (old, new) if old else ("*", f"{new}.*")


def _alike(source: list[str], target: list[str]) -> int:
    """Return how many components two names have in common at their ends."""
    count = 0
    for left, right in zip(reversed(source), reversed(target), strict=False):
        if left != right:
            return count
        count += 1
    return count


def _some(names: Iterable[str]) -> str:
    all_names = list(names)
    more = f" and {len(all_names) - SHOWN} more" if len(all_names) > SHOWN else ""
    return (", ".join(all_names[:SHOWN]) or "no tensor") + more

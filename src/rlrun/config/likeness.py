"""An override that takes the place of a number, or of true or false, has to be one, too."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from rlrun.config.origins import WORD, Layer, origins
from rlrun.config.schema import KINDS, OPEN, TRUTH, Kind, number, shown, whole
from rlrun.config.tree import Path, child, dotted, leaves, plain
from rlrun.core.errors import ConfigError


def check_likeness(config: Any, layers: Sequence[Layer]) -> dict[str, Any]:
    """Compare what overrides set with the values that files have there; return whole numbers written as `1e3`.

    Null, interpolations and whole blocks may stand anywhere. In a packaged file `1` means a whole number and
    `1.0` any; a user's file is read more freely.

    Raises: ConfigError if a value is of another type.
    """
    tree, changed = plain(config), {}
    file_values: dict[Path, tuple[Any, bool]] = {}
    for layer in layers:
        if layer.label != WORD:
            file_values.update({path: (value, layer.packaged) for path, value in leaves(layer.content)})
    for path, layer in origins(config, layers).items():
        key = dotted(path)
        if layer.label != WORD or path not in file_values or key in KINDS or key.startswith(OPEN):
            continue
        kind, value = _kind(*file_values[path]), reduce(child, path, tree)
        if kind is None or value is None or (isinstance(value, str) and ("${" in value or value == "???")):
            continue
        try:
            converted = kind.convert(value)
        except (ValueError, OverflowError):
            raise ConfigError(f"{key}: wanted {kind.wanted}, got {shown(value)}") from None
        if type(converted) is not type(value):
            changed[key] = converted
    return changed


def _kind(value: Any, packaged: bool) -> Kind | None:
    if isinstance(value, bool):
        return TRUTH
    if isinstance(value, int) and packaged:
        return WHOLE
    return NUMBER if isinstance(value, (int, float)) else None


NUMBER = number()
WHOLE = Kind("a whole number", whole(-(2**63)).convert)

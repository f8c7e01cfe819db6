"""Find config files, compose them, check them and say where each value came from."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlrun.config.composition import Composer as Composer
    from rlrun.config.composition import compose as compose
    from rlrun.config.layers import Composed as Composed
    from rlrun.config.layers import provenance as provenance
    from rlrun.config.places import choices as choices
    from rlrun.config.places import group_names as group_names
    from rlrun.config.reading import unread as unread
    from rlrun.config.saved import kept as kept
    from rlrun.config.saved import load as load
    from rlrun.config.saved import select as select
    from rlrun.config.saved import to_yaml as to_yaml

_HOMES = {
    "Composed": "layers",
    "Composer": "composition",
    "compose": "composition",
    "choices": "places",
    "group_names": "places",
    "provenance": "layers",
    "unread": "reading",
    "load": "saved",
    "select": "saved",
    "kept": "saved",
    "to_yaml": "saved",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Import on first use: shell completion lists files and must load neither hydra nor yaml."""
    if name not in _HOMES:
        raise AttributeError(f"module 'rlrun.config' has no attribute '{name}'")
    return getattr(importlib.import_module(f"rlrun.config.{_HOMES[name]}"), name)

"""Find config files, compose them, check them and say where each value came from."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlrun.config.composition import Composer as Composer
    from rlrun.config.composition import compose as compose
    from rlrun.config.composition import describe_presets as describe_presets
    from rlrun.config.files import read_yaml as read_yaml
    from rlrun.config.interpolation import dotted as dotted
    from rlrun.config.interpolation import leaves as leaves
    from rlrun.config.interpolation import plain as plain
    from rlrun.config.layers import Composed as Composed
    from rlrun.config.layers import provenance as provenance
    from rlrun.config.peers import override_of as override_of
    from rlrun.config.places import choices as choices
    from rlrun.config.places import group_names as group_names
    from rlrun.config.places import offers as offers
    from rlrun.config.places import readable_places as readable_places
    from rlrun.config.places import search_path as search_path
    from rlrun.config.reading import unread as unread
    from rlrun.config.saved import kept as kept
    from rlrun.config.saved import load as load
    from rlrun.config.saved import select as select
    from rlrun.config.saved import to_yaml as to_yaml
    from rlrun.config.schema import KINDS as KINDS

_HOMES = {
    **dict.fromkeys(("Composer", "compose", "describe_presets"), "composition"),
    "read_yaml": "files",
    **dict.fromkeys(("dotted", "leaves", "plain"), "interpolation"),
    **dict.fromkeys(("Composed", "provenance"), "layers"),
    "override_of": "peers",
    **dict.fromkeys(("choices", "group_names", "offers", "readable_places", "search_path"), "places"),
    "unread": "reading",
    **dict.fromkeys(("kept", "load", "select", "to_yaml"), "saved"),
    "KINDS": "schema",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Import on first use: shell completion lists files and must load neither hydra nor yaml."""
    if name not in _HOMES:
        raise AttributeError(f"module 'rlrun.config' has no attribute '{name}'")
    return getattr(importlib.import_module(f"rlrun.config.{_HOMES[name]}"), name)

"""State on disk: tensors in safetensors, everything else in JSON, no pickle.

A stored state is a folder that appears as a whole or not at all:

    tensors.safetensors      tensors and arrays of all parts
    tensors.1.safetensors    … of a large part that only some readers load
    state.json               part -> its state, with a marker in place of each tensor
    manifest.json            size and sha256 of each file, and of itself

Rows of memories are next to such folders, in `segments/`, shared by states with the same rows.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlrun.checkpointing.encoding import digest as digest
    from rlrun.checkpointing.encoding import merge as merge
    from rlrun.checkpointing.encoding import split as split
    from rlrun.checkpointing.manifest import FORMAT as FORMAT
    from rlrun.checkpointing.manifest import MANIFEST as MANIFEST
    from rlrun.checkpointing.manifest import STATE as STATE
    from rlrun.checkpointing.manifest import TENSORS as TENSORS
    from rlrun.checkpointing.manifest import read_manifest as read_manifest
    from rlrun.checkpointing.segments import home_of as home_of
    from rlrun.checkpointing.states import Snapshot as Snapshot
    from rlrun.checkpointing.states import collect as collect
    from rlrun.checkpointing.states import load as load
    from rlrun.checkpointing.states import remove as remove
    from rlrun.checkpointing.states import snapshot as snapshot
    from rlrun.checkpointing.states import sweep as sweep
    from rlrun.checkpointing.states import verify as verify
    from rlrun.checkpointing.states import write as write

_HOMES = {
    **dict.fromkeys(("digest", "merge", "split"), "encoding"),
    **dict.fromkeys(("FORMAT", "MANIFEST", "STATE", "TENSORS", "read_manifest"), "manifest"),
    **dict.fromkeys(("home_of",), "segments"),
    **dict.fromkeys(("Snapshot", "collect", "load", "remove", "snapshot", "sweep", "verify", "write"), "states"),
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Import on first use, so that commands which only read manifests do not load torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'rlrun.checkpointing' has no attribute '{name}'")
    return getattr(importlib.import_module(f"rlrun.checkpointing.{_HOMES[name]}"), name)

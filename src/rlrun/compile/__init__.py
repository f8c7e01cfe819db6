"""Compile an update into one graph: `compile: true`."""

from rlrun.compile.update import FusedUpdate

__all__ = ["FusedUpdate"]

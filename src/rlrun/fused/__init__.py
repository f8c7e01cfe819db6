"""An update as one graph: `compile: true`."""

from rlrun.fused.update import FusedUpdate

__all__ = ["FusedUpdate"]

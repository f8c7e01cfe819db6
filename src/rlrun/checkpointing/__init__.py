"""State on disk: tensors in safetensors, everything else in JSON, no pickle.

A stored state is a folder that appears as a whole or not at all:

    tensors.safetensors      tensors and arrays of all parts
    tensors.1.safetensors    … of a large part that not every reader wants
    state.json               part -> its state, with a marker in place of each tensor
    manifest.json            size and sha256 of each file, and of itself

Rows of memories are next to such folders, in `segments/`, shared by those that hold the same rows.
"""

from rlrun.checkpointing.encoding import digest, merge, split
from rlrun.checkpointing.segments import home_of
from rlrun.checkpointing.states import Snapshot, collect, load, remove, snapshot, sweep, verify, write
from rlrun.runs.checkpoint_manifest import FORMAT, MANIFEST, STATE, TENSORS, read_manifest

__all__ = ["FORMAT", "MANIFEST", "STATE", "TENSORS", "Snapshot", "collect", "digest", "home_of", "load", "merge"]
__all__ += ["read_manifest", "remove", "snapshot", "split", "sweep", "verify", "write"]

"""A checkpoint with one byte wrong, or cut off anywhere, gives one line; nothing else is raised."""

import json

import numpy as np
import pytest
import torch

from rlrun import checkpointing as storage
from rlrun.checkpointing import MANIFEST, STATE, TENSORS
from rlrun.core.errors import RunDirError
from rlrun.memory import Table


@pytest.fixture
def checkpoint(tmp_path):
    """A checkpoint of a network and a memory."""
    path = tmp_path / "checkpoints" / "0000000010-0000000001"
    table = Table(length=9, columns={"observation": {}, "reward": {}})
    for step in range(6):
        table.add(None, {"observation": [step], "reward": [1]})
    table.close(None, [6])
    memory = table.checkpoint(storage.home_of(path.parent))
    states = {"network": {"w": torch.ones(4), "array": np.arange(3)}, "memory": memory}
    storage.write(path, storage.snapshot(states, about={"env_steps": 10, "updates": 1}, apart=["memory"]))
    return path


def refused(checkpoint, path):
    with pytest.raises(RunDirError) as error:
        storage.load(checkpoint)
    assert "\n" not in str(error.value)
    assert path.name in str(error.value)
    assert storage.verify(checkpoint) != []


@pytest.mark.parametrize("name", [MANIFEST, STATE, TENSORS, "tensors.1.safetensors", "a segment"])
def test_a_file_that_is_changed_or_cut_off_is_named(name, checkpoint):
    path = checkpoint / name if name != "a segment" else next((checkpoint.parent / "segments").iterdir())
    data = path.read_bytes()
    for place in range(0, len(data), 13):
        for byte in {ord("9"), ord("."), ord("-"), 0, 255, data[place] ^ 1} - {data[place]}:
            path.write_bytes(data[:place] + bytes([byte]) + data[place + 1 :])
            refused(checkpoint, path)
    for size in range(0, len(data), 29):
        path.write_bytes(data[:size])
        refused(checkpoint, path)
    path.unlink()
    refused(checkpoint, path)
    path.mkdir()
    refused(checkpoint, path)


def test_another_format_is_named(checkpoint):
    note = json.loads((checkpoint / MANIFEST).read_bytes())
    (checkpoint / MANIFEST).write_text(json.dumps({**note, "format": 1}))
    with pytest.raises(RunDirError, match="has format 1; this version of rlrun reads 2"):
        storage.load(checkpoint)

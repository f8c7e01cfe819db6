"""What sinks wrote: W&B offline by the protocol of its own package, TensorBoard by its own reader."""

import json
import time
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb.proto.wandb_internal_pb2 import Record

BLOCK, HEAD = 1 << 15, 7  # bytes of a block; of the file's head and of each part's: checksum, length, type
LAST = (1, 4)  # types of parts: the only one of a record, the last one


def records_of(path: Path) -> list[Record]:
    """Return the whole records of a `.wandb` file, which has the format of LevelDB's logs, and may be written now."""
    data, place, whole, records = path.read_bytes(), HEAD, b"", []
    while place + HEAD < len(data):
        if BLOCK - place % BLOCK < HEAD:
            place += BLOCK - place % BLOCK  # the rest of a block is empty
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        if place + HEAD + length > len(data):
            break
        whole += data[place + HEAD : place + HEAD + length]
        place += HEAD + length
        if kind in LAST:
            records.append(Record.FromString(whole))
            whole = b""
    return records


def history_of(path: Path) -> list[dict]:
    """Return what was logged at each step; a key of a nested value is NAME.KEY. Waits for the end of the file."""
    until = time.monotonic() + 60.0
    while not (records := records_of(path)) or not records[-1].HasField("exit"):
        assert time.monotonic() < until, f"{path} has no end"
        time.sleep(0.05)
    histories = [record.history for record in records if record.HasField("history")]
    return [{".".join(item.nested_key): json.loads(item.value_json) for item in history.item} for history in histories]


def events_of(run: Path) -> EventAccumulator:
    """Return all that a run's TensorBoard has."""
    return EventAccumulator(str(run / "tensorboard"), {"images": 0, "tensors": 0, "histograms": 0}).Reload()

"""Send the metrics of a run to a service; the Python equivalent of `rlrun upload`."""

import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rlrun.callbacks.logging.sinks import make_sinks
from rlrun.config.files import one_line
from rlrun.config.interpolation import plain
from rlrun.config.overrides import parse
from rlrun.config.saved import load, select
from rlrun.core.errors import RequestError, RlrunError, RunDirError, did_you_mean
from rlrun.core.files import head, known
from rlrun.runs.directory import RunDir
from rlrun.runs.heartbeat import require_idle

SERVICES = ("wandb", "mlflow")


def upload(run: Path | str, to: str, settings: Iterable[str] = ()) -> int:
    """Upload all records of `metrics.jsonl` to a new run of a service; return their number.

    A resume with that logger continues the service's run.

    Args:
        run: a run directory that no process is working on.
        to: `wandb` (online by default, or as WANDB_MODE sets it), or `mlflow`.
        settings: of the logger, such as `project=mine`. They add to those of the run's config except `mode` and `uri`.

    Raises:
        RequestError: the service is unknown.
        RunDirError: a process is working on the run, or it has no records.
        RlrunError: the service refused the records.
    """
    if to not in SERVICES:
        raise RequestError(f"--to {to}: wanted {' or '.join(SERVICES)}{did_you_mean(to, SERVICES)}")
    directory = RunDir.open(run)
    config = load(directory.config)
    node = select(config, resolve=True, package="callbacks.logger.sinks")
    own = [entry[to] for entry in node.get("names") or () if isinstance(entry, dict) and entry.get(to)]
    chosen = {key: value for entry in own for key, value in entry.items() if key not in ("mode", "uri")}
    chosen |= {"mode": os.environ.get("WANDB_MODE", "online")} if to == "wandb" else {}
    chosen |= {setting.key: setting.value for setting in parse(settings)}
    axis = {name: node[name] for name in ("offline", "axis") if name in node}
    sink: Any = make_sinks([{to: chosen}], **axis)[-1]
    require_idle(directory)
    if not directory.metrics.is_file():
        raise RunDirError(f"{directory.metrics} is missing: the run has no records")
    lines = directory.metrics.read_text(encoding="utf-8").rpartition("\n")[0].splitlines()  # the last may be cut off
    note = directory.path / to / sink.note
    before = head(note, 33)
    note.unlink(missing_ok=True)
    try:
        sink.open(directory, plain(config))
        for line in lines:
            sink.write({name: math.nan if value is None else value for name, value in json.loads(line).items()})
        sink.close(known(directory.summary).get("status") == "failed")
    except Exception as error:
        if before:
            note.write_bytes(before)
        raise RlrunError(f"{to} did not take the run: {type(error).__name__}: {one_line(error)}") from error
    return len(lines)

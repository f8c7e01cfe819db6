"""Records of metrics, the sinks that receive them, and a run's names at services."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from rlrun.core.files import head, write_text
from rlrun.core.typing import Array
from rlrun.runs.directory import RunDir
from rlrun.training.metrics import Video

LETTERS = 128  # longest name of a run or a group of W&B
Record = dict[str, Any]  # env_steps, updates, seconds, and metrics by full name


def axis_of(record: Mapping[str, Any], offline: int = 0, axis: str = "env_steps") -> int:
    """Return a record's place on an axis; without environment steps their axis counts updates.

    offline: updates before the first environment step, which comes after them.
    """
    if axis != "env_steps":
        return int(record[axis])
    return offline + int(record["env_steps"]) if record["env_steps"] else int(record["updates"])


def position(record: Mapping[str, Any]) -> float:
    """Return a number that grows with every record of a run."""
    return float(record["env_steps"] + record["updates"])


class Sink(ABC):
    """Receives records; a subclass defines `write`, and `close` if it has to finish.

    media: records have `Distribution`, `Image`, `Video` and `Text` as well; otherwise numbers alone.
    writes_files: it is left out of a run without a directory.
    """

    media = writes_files = False

    def open(self, run: RunDir | None, config: Mapping[str, Any], *, records: int = 0, axis: int = 0) -> None:
        """Start, or continue after so many records, the last at `axis`."""

    @abstractmethod
    def write(self, record: Record) -> None:
        """Write one record."""

    def close(self, failed: bool = False) -> None:
        """Finish; `failed` if the run did."""


class Tracker(Sink):
    """A sink of files or of a service, which knows the place of a record; `make_sinks` sets `offline` and `axis`.

    offline: updates before the first environment step; on the axis of steps they come before these.
    axis: `env_steps`, `updates` or `samples`.
    newest: position of the newest record that a service had at the start; it gets the later ones.
    note: the file that keeps the run's id at the service, in the tracker's folder.
    """

    writes_files = True
    offline = 0
    axis = "env_steps"
    newest = -1.0
    note = "id"

    def write(self, record: Record) -> None:
        if position(record) > self.newest:
            self.log(record, axis_of(record, self.offline, self.axis))

    @abstractmethod
    def log(self, record: Record, at: int) -> None:
        """Write one record at its place on the axis."""


def kept_id(note: Path, make: Callable[[], str]) -> str:
    """Return the run's id at a service, which a file of the run keeps for a resume; made at the first start."""
    known = head(note, 33).decode(errors="replace")
    if not re.fullmatch("[0-9a-f]{8,32}", known):
        write_text(note, known := make())
    return known


def noted(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the entries below `notes`, by dotted key, as texts."""
    texts: dict[str, str] = {}
    for key, value in (config.get("notes") or {}).items():
        inner = {f".{name}": text for name, text in noted({"notes": value}).items()} if isinstance(value, dict) else {}
        texts |= {f"{key}{name}": text for name, text in (inner or {"": str(value)}).items()}
    return texts


def titles(run: RunDir, config: Mapping[str, Any]) -> tuple[str, str]:
    """Return the names of a run's group and of the run at a service: its overrides, and those with its seed."""
    group = " ".join(override for override in run.read_overrides() if not override.startswith(("seed=", "logger=")))
    return group[:LETTERS], f"{group[: LETTERS - 10]} s{config.get('seed')}" if group else run.path.name


def gif(video: Video) -> bytes:
    """Return a video in the format GIF."""
    file, (first, *rest) = BytesIO(), map(pillow, video.frames)
    first.save(file, "GIF", save_all=True, append_images=rest, duration=round(1000.0 / video.fps), loop=0)
    return file.getvalue()


def pillow(pixels: Array) -> Any:
    """Return pixels [H, W, channels] as an image of pillow."""
    from PIL import Image as Pillow

    return Pillow.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)

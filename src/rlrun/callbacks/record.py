"""A record of metrics, its images and videos in the formats that sinks take, and what sinks say of its run."""

import subprocess
from collections.abc import Mapping
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

from rlrun.collect.video import PALETTE, require_encoder
from rlrun.core.errors import RlrunError, RunDirError
from rlrun.core.typing import Array
from rlrun.runs.directory import RunDir
from rlrun.training.metrics import Video

FINAL, BEST = "evaluation/mean_return", "evaluation/best_return"
LETTERS = 128  # in a name or a group of W&B
Record = dict[str, Any]  # env_steps, updates, seconds, and metrics by full name


def axis_of(record: Mapping[str, Any], offline: int = 0, axis: str = "env_steps") -> int:
    """Return a record's place on an axis; that of environment steps is updates where there are no steps.

    offline: updates before the first environment step, which comes after them.
    """
    if axis != "env_steps":
        return int(record[axis])
    return offline + int(record["env_steps"]) if record["env_steps"] else int(record["updates"])


class Placed:
    """A sink of files or of a service, which knows the place of a record; `make_sinks` sets its attributes.

    offline: updates before the first environment step; on the axis of steps they come before these.
    axis: `env_steps`, `updates` or `samples`.
    """

    writes_files = media = True
    offline = 0
    axis = "env_steps"

    def place(self, record: Mapping[str, Any]) -> int:
        """Return a record's place on the axis."""
        return axis_of(record, self.offline, self.axis)


def hyperparameters(run: RunDir, config: Mapping[str, Any]) -> dict[str, float | str]:
    """Return the algorithm's numbers and texts, the environment's id, the seed, and the overrides, by config key."""
    values = {f"algorithm.{name}": value for name, value in (config.get("algorithm") or {}).items()}
    values |= {"env.id": (config.get("env") or {}).get("id"), "seed": config.get("seed")}
    for override in run.read_overrides():
        key, _, text = override.lstrip("+~").partition("=")
        values.setdefault(key, text)
    return {name: value for name, value in values.items() if isinstance(value, int | float | str)}


def noted(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the entries below `notes`, by dotted key, as texts."""
    texts: dict[str, str] = {}
    for key, value in (config.get("notes") or {}).items():
        inner = {f".{name}": text for name, text in noted({"notes": value}).items()} if isinstance(value, dict) else {}
        texts |= {f"{key}{name}": text for name, text in (inner or {"": str(value)}).items()}
    return texts


def files_of(run: RunDir) -> dict[str, list[tuple[Path, str]]]:
    """Return the files of the best checkpoint, the exports and the videos, each with its path in there."""
    folders = {"exports": run.exports, "videos": run.videos}
    with suppress(RunDirError):
        folders["checkpoint"] = run.checkpoint("best")
    files = {
        name: [(path, path.relative_to(folder).as_posix()) for path in sorted(folder.rglob("*"))]
        for name, folder in folders.items()
    }
    plain = {
        name: [(path, place) for path, place in paths if path.is_file() and not path.is_symlink()]
        for name, paths in files.items()
    }
    return {name: paths for name, paths in plain.items() if paths}


def titles(run: RunDir, config: Mapping[str, Any]) -> tuple[str, str]:
    """Return what a run's group and the run are called at a service: its overrides, and those with its seed."""
    group = " ".join(override for override in run.read_overrides() if not override.startswith(("seed=", "logger=")))
    return group[:LETTERS], f"{group[: LETTERS - 10]} s{config.get('seed')}" if group else run.path.name


def gif(video: Video) -> bytes:
    """Return a video in the format GIF."""
    file, (first, *rest) = BytesIO(), map(pillow, video.frames)
    first.save(file, "GIF", save_all=True, append_images=rest, duration=round(1000.0 / video.fps), loop=0)
    return file.getvalue()


def as_gif(path: Path) -> bytes:
    """Return a small GIF of a video: its first minute, 10 frames per second, at most 320 pixels wide.

    Raises:
        RlrunError: it cannot be converted.
    """
    require_encoder("a GIF of a video")
    from imageio_ffmpeg import get_ffmpeg_exe

    read = ("-protocol_whitelist", "file,pipe", "-f", "mp4", "-t", "60", "-i", str(path))  # no playlist, no address
    filters = f"fps=10,scale='min(320,iw)':-2,{PALETTE}"
    command = [get_ffmpeg_exe(), "-v", "error", *read, "-filter_complex", filters, "-f", "gif", "-"]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, start_new_session=True)
    if result.returncode:
        raise RlrunError(f"{path} cannot be converted: {result.stderr.decode(errors='replace').strip()}")
    return result.stdout


def pillow(pixels: Array) -> Any:
    """Return pixels [H, W, channels] as an image of pillow."""
    from PIL import Image as Pillow

    return Pillow.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)

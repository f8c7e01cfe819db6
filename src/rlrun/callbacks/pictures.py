"""Images and videos in the formats that sinks take."""

import subprocess
from io import BytesIO
from pathlib import Path
from typing import Any

from rlrun.collect.video import PALETTE, require_encoder
from rlrun.core.errors import RlrunError
from rlrun.core.typing import Array
from rlrun.training.metrics import Video


def gif(video: Video) -> bytes:
    """Return a video in the format GIF."""
    file, (first, *others) = BytesIO(), map(pillow, video.frames)
    first.save(file, "GIF", save_all=True, append_images=others, duration=round(1000.0 / video.fps), loop=0)
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

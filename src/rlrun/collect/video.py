"""Videos of episodes, written without a screen and without a system ffmpeg."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from rlrun.env import Env
from rlrun.errors import MissingExtra, RequestError
from rlrun.typing import Array

FALLBACK_FPS = 30  # for environments that do not state theirs
HEADLESS = {"MUJOCO_GL": "egl", "SDL_VIDEODRIVER": "dummy"}  # read when mujoco and pygame are first imported


def require(place: str, env: Env | None = None) -> None:
    """Refuse early where videos cannot be written.

    Raises:
        MissingExtra: the encoder is not installed.
        RequestError: the environment draws no pictures.
    """
    if env is not None and any("rgb_array" not in (lane.metadata.get("render_modes") or ()) for lane in env.lanes):
        raise RequestError(f"{place}: environment '{env.name}' draws no pictures (rgb_array)")
    try:
        import imageio_ffmpeg  # noqa: F401
    except ModuleNotFoundError:
        raise MissingExtra(place, "imageio-ffmpeg", "video") from None
    for name, value in HEADLESS.items():
        os.environ.setdefault(name, value)


class Recorder:
    """Write one mp4 an episode, frame by frame, while a single-lane environment plays.

    Args:
        env: one lane, made with `render_mode="rgb_array"`.
        name: episode -> file.

    Raises:
        RequestError: the environment gives no pictures.
    """

    def __init__(self, env: Env, name: Callable[[int], Path]) -> None:
        self.env = env
        self.name = name
        self.paths: list[Path] = []
        self._episode: int | None = None
        self._writer: Any = None

    def __call__(self, lane: int, episode: int) -> None:
        """Add the current picture to the video of an episode."""
        frame = self.env.render()
        if not isinstance(frame, np.ndarray) or frame.ndim != 3:
            raise RequestError(f"video: {self.env.name} gives no pictures (render_mode 'rgb_array')")
        frame = _even(frame)
        if episode != self._episode:
            self._begin(episode, frame)
        self._writer.send(frame)

    def _begin(self, episode: int, frame: Array) -> None:
        from imageio_ffmpeg import write_frames

        self.close()
        path = self.name(episode)
        path.parent.mkdir(parents=True, exist_ok=True)
        height, width = frame.shape[:2]
        self._writer = write_frames(
            str(path), (width, height), fps=_fps(self.env), macro_block_size=2, ffmpeg_log_level="error"
        )
        self._writer.send(None)
        self._episode = episode
        self.paths.append(path)

    def close(self) -> None:
        """Finish the file being written."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _fps(env: Env) -> float:
    metadata = env.lanes[0].metadata if env.lanes else {}
    return float(metadata.get("render_fps") or FALLBACK_FPS)


def _even(frame: Array) -> Array:
    """Cut to even sides, as the encoder wants them."""
    height, width = frame.shape[:2]
    return np.ascontiguousarray(frame[: height // 2 * 2, : width // 2 * 2])

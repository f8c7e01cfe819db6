"""What draws pictures of environments, and what makes videos of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from ctypes.util import find_library

from rlrun.errors import installing
from rlrun.health.findings import Finding
from rlrun.health.imports import Tried

LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa", "glfw": "GL"}  # MUJOCO_GL -> what it draws by
SCREENS = ("DISPLAY", "WAYLAND_DISPLAY")


def findings(tried: Mapping[str, Tried]) -> Iterator[Finding]:
    """Tell of the screen, of MuJoCo's pictures, and of the encoder."""
    screen = next((f"{name}={os.environ[name]}" for name in SCREENS if os.environ.get(name)), None)
    if sys.platform not in ("linux", "cygwin"):
        screen = "there is one"
    yield Finding("ok", "pictures", "display", screen or "none; videos are drawn without")
    yield _mujoco(screen)
    yield _encoder(tried)


def _mujoco(screen: str | None) -> Finding:
    chosen = os.environ.get("MUJOCO_GL", "").lower()
    backends = [way for way, library in LIBRARIES.items() if find_library(library) is not None]
    text = f"MUJOCO_GL={chosen or 'unset'}, libraries for {', '.join(backends) or 'none'}"
    way = chosen or "egl"  # what videos set where nothing is said
    if way not in LIBRARIES or (way in backends and not (way == "glfw" and screen is None)):
        return Finding("ok", "pictures", "mujoco", text)
    if way == "glfw" and screen is None:
        return Finding("note", "pictures", "mujoco", f"{text}: glfw needs a display", "export MUJOCO_GL=egl")
    package = {"egl": "libegl1", "osmesa": "libosmesa6", "glfw": "libgl1"}[way]
    return Finding("note", "pictures", "mujoco", f"{text}: no videos of MuJoCo", f"apt-get install {package}")


def _encoder(tried: Mapping[str, Tried]) -> Finding:
    encoder = tried.get("imageio_ffmpeg", Tried(error="is missing"))
    if encoder.error is None:
        return Finding("ok", "pictures", "ffmpeg", f"{encoder.about['version']} ({encoder.about['program']})")
    remedy = installing("video")
    if encoder.error.startswith("RuntimeError"):  # the package is there, its program is not
        remedy = "set IMAGEIO_FFMPEG_EXE to the path of an ffmpeg"
    return Finding("note", "pictures", "ffmpeg", f"no videos: {encoder.error}", remedy)

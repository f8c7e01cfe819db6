"""Cores, threads, GPU, disk and git of this machine, and what draws its pictures and makes videos of them."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from ctypes.util import find_library
from pathlib import Path

from rlrun.analysis.doctor.findings import HealthFinding
from rlrun.analysis.doctor.imports import Tried
from rlrun.core.errors import installing
from rlrun.runs import manifest
from rlrun.runs.files import reason, sized

OMP = "OMP_NUM_THREADS"
DRIVERS = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"), Path("/dev/kfd"))  # Nvidia's, and AMD's
LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa", "glfw": "GL"}  # MUJOCO_GL -> what it draws by
PACKAGES = {"egl": "libegl1", "osmesa": "libosmesa6", "glfw": "libgl1"}  # … and what brings that
SCREENS = ("DISPLAY", "WAYLAND_DISPLAY")
LITTLE = 1_000_000_000  # bytes; a replay memory of pictures takes more
TOO_LITTLE = 50_000_000  # checkpoints of small networks, some of them at a time
SHARED = Path("/dev/shm")
SHARED_LITTLE = 100_000_000


def processor(tried: Mapping[str, Tried]) -> Iterator[HealthFinding]:
    """Tell how many cores may be used, how many threads libraries would begin, and of bfloat16 where torch knows it."""
    usable, total = manifest.cores(), os.cpu_count() or 1
    model = (manifest.cpu() or "").rpartition(", ")[0]
    yield HealthFinding("ok", "threads", "cores", f"{usable} of {total} may be used" + (f" ({model})" if model else ""))
    value, about = os.environ.get(OMP), tried.get("torch", Tried()).about
    text = f"{OMP}={value or 'unset'}"
    if "threads" in about:
        text += f"; torch would begin {about['threads']}, a run sets `threads`"
    if value is None or (value.isdecimal() and 1 <= int(value) <= usable):
        yield HealthFinding("ok", "threads", OMP, text)
    else:
        yield HealthFinding("note", "threads", OMP, text, f"export {OMP}=1")
    if "bfloat16" in about:
        text = "has instructions for it; precision=bf16 trains large networks faster"
        text = text if about["bfloat16"] else "has no instructions for it; precision=bf16 is refused"
        yield HealthFinding("ok", "cpu", "bfloat16", text)


def gpu(tried: Mapping[str, Tried]) -> HealthFinding:
    """Compare the GPUs of this machine with those that torch can use."""
    torch = tried.get("torch")
    if torch is None or torch.error is not None:
        return HealthFinding("note", "gpu", "torch", "not known, as torch cannot be imported")
    built, gpus = torch.about["cuda"], torch.about["gpus"]
    if gpus:
        return HealthFinding("ok", "gpu", "torch", f"{', '.join(gpus)} (torch is built for {built})")
    if shutil.which("nvidia-smi") is None and not any(path.exists() for path in DRIVERS):
        return HealthFinding("ok", "gpu", "torch", "none; training is done by the CPU")
    if built is None:
        text = "this machine has a GPU, and torch is built for the CPU alone"
        remedy = "pip install --force-reinstall torch, with the index for your driver: https://pytorch.org/get-started"
    else:
        text = f"torch is built for {built} and finds no GPU, though there is a driver"
        remedy = "compare nvidia-smi with https://pytorch.org/get-started, and look at CUDA_VISIBLE_DEVICES"
    return HealthFinding("note", "gpu", "torch", text, remedy)


def pictures(tried: Mapping[str, Tried]) -> Iterator[HealthFinding]:
    """Tell of the screen, of MuJoCo's pictures, and of the encoder."""
    screen = next((f"{name}={os.environ[name]}" for name in SCREENS if os.environ.get(name)), None)
    if sys.platform not in ("linux", "cygwin"):
        screen = "there is one"
    yield HealthFinding("ok", "pictures", "display", screen or "none; videos are drawn without")

    chosen = os.environ.get("MUJOCO_GL", "").lower()
    backends = [backend for backend, library in LIBRARIES.items() if find_library(library) is not None]
    text = f"MUJOCO_GL={chosen or 'unset'}, libraries for {', '.join(backends) or 'none'}"
    backend = chosen or "egl"  # what videos set where nothing is said
    if backend == "glfw" and screen is None:
        yield HealthFinding("note", "pictures", "mujoco", f"{text}: glfw needs a display", "export MUJOCO_GL=egl")
    elif backend in LIBRARIES and backend not in backends:
        remedy = f"apt-get install {PACKAGES[backend]}"
        yield HealthFinding("note", "pictures", "mujoco", f"{text}: no videos of MuJoCo", remedy)
    else:
        yield HealthFinding("ok", "pictures", "mujoco", text)

    encoder = tried.get("imageio_ffmpeg", Tried("is missing"))
    if encoder.error is None:
        yield HealthFinding("ok", "pictures", "ffmpeg", f"{encoder.about['version']} ({encoder.about['program']})")
    else:
        program_is_missing = encoder.error.startswith("RuntimeError")  # the package is there
        remedy = "set IMAGEIO_FFMPEG_EXE to the path of an ffmpeg" if program_is_missing else installing("video")
        yield HealthFinding("note", "pictures", "ffmpeg", f"no videos: {encoder.error}", remedy)


def disk(folder: Path) -> Iterator[HealthFinding]:
    """Tell of the disk on which runs are written, and of the memory that processes share."""
    existing = _existing(folder)
    free, place, text = shutil.disk_usage(existing).free, str(existing.absolute()), _usage(existing)
    if free < TOO_LITTLE:
        yield HealthFinding("problem", "disk", place, text, "make room, or train elsewhere: --run-dir DIR")
    elif free < LITTLE:
        yield HealthFinding("note", "disk", place, text, "checkpoint.memory=false keeps checkpoints small")
    else:
        yield HealthFinding("ok", "disk", place, text)

    runs = _existing(folder / "runs")  # where runs go by default
    try:
        with tempfile.TemporaryFile(dir=runs) as file:
            file.write(b"x")
        yield HealthFinding("ok", "disk", "runs/", "can be written")
    except OSError as error:
        text = f"{runs} cannot be written: {reason(error)}"
        yield HealthFinding("problem", "disk", "runs/", text, "stand in another folder, or say --run-dir DIR")

    if SHARED.is_dir() and shutil.disk_usage(SHARED).free < SHARED_LITTLE:
        text = f"{_usage(SHARED)}; Ray keeps there what its processes share"
        yield HealthFinding("note", "disk", str(SHARED), text, "of a container: --shm-size=1g")
    elif SHARED.is_dir():
        yield HealthFinding("ok", "disk", str(SHARED), _usage(SHARED))


def _existing(folder: Path) -> Path:
    """Return a folder, or the one above in which it would be made."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


def _usage(folder: Path) -> str:
    usage = shutil.disk_usage(folder)
    return f"{sized(usage.free)} of {sized(usage.total)} free"


def git(folder: Path) -> HealthFinding:
    """Tell whether manifests can say from which source a run was made."""
    if shutil.which("git") is None:
        return HealthFinding(
            "note", "git", "git", "is missing: no manifest names the commit of your code", "install git"
        )
    state = manifest.git(folder)
    if state is None:
        return HealthFinding("ok", "git", "git", "there is no commit here for manifests to name")
    return HealthFinding("ok", "git", "git", f"{state['commit'][:12]}{', changed since' if state['dirty'] else ''}")

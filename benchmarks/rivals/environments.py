"""An environment for each rival, made when it is first wanted, under RLRUN_BENCH_CACHE or ~/.cache/rlrun-benchmarks."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from benchmarks.process import ROOT, Failed

REQUIREMENTS = {
    "stable-baselines3": "stable-baselines3==2.9.2",
    "torchrl": "torchrl==0.14.1",
    "tianshou": "tianshou==2.0.1",
    "sheeprl": "sheeprl==0.8.4",
    "cpprb": "cpprb==11.0.0",
}
OWN = {"sheeprl": ("pillow",)}  # packages that a rival needs in another version than is tested here


def cache() -> Path:
    """Return the folder that holds the environments."""
    return Path(os.environ.get("RLRUN_BENCH_CACHE") or Path.home() / ".cache" / "rlrun-benchmarks")


def interpreter(rival: str) -> Path:
    """Return the Python of a rival's environment.

    The packages that run this are the last to be searched, so that all share one torch and one numpy;
    what a rival needs in another version goes into its own environment.

    Raises:
        Failed: it could not be installed.
    """
    folder, shared = cache() / rival, sysconfig.get_path("purelib")
    made_of = "\n".join((REQUIREMENTS[rival], sys.version, shared, ""))
    note = folder / "made_of.txt"
    if not note.exists() or note.read_text() != made_of:
        print(f"installing {REQUIREMENTS[rival]} in {folder}", flush=True)
        venv.create(folder, clear=True, with_pip=True, symlinks=True)
        for place in folder.glob("lib/python*/site-packages"):
            (place / "shared.pth").write_text(shared + "\n")
        _install(folder, REQUIREMENTS[rival], OWN.get(rival, ()))
        note.write_text(made_of)
    return folder / "bin" / "python"


def _install(folder: Path, requirement: str, own: tuple[str, ...]) -> None:
    lines, constraints = (ROOT / "constraints.txt").read_text().splitlines(), folder / "constraints.txt"
    constraints.write_text("\n".join(line for line in lines if line.partition("==")[0] not in own) + "\n")
    overrides = ["-m", "pip", "install", "--quiet", "--constraint", str(constraints), requirement]
    episode_end = subprocess.run([folder / "bin" / "python", *overrides], capture_output=True, text=True)
    if episode_end.returncode != 0:
        errors = [line for line in episode_end.stderr.splitlines() if line.startswith("ERROR")]
        raise Failed(f"pip could not install {requirement}: {errors[-1] if errors else episode_end.stderr[-300:]}")

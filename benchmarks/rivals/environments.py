"""A virtual environment for each rival, installed on first use, in RLRUN_BENCH_CACHE or ~/.cache/rlrun-benchmarks."""

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
    "sbx": "sbx-rl==0.28.0",
    "cpprb": "cpprb==11.0.0",
    "numpyro": "numpyro==0.22.0",
}
OWN = {"sheeprl": ("pillow",)}  # packages that a rival needs in another version than is tested here


def cache() -> Path:
    """Return the folder that holds the environments."""
    return Path(os.environ.get("RLRUN_BENCH_CACHE") or Path.home() / ".cache" / "rlrun-benchmarks")


def interpreter(rival: str) -> Path:
    """Return the Python of a rival's environment.

    It searches the packages of this process last, so that all rivals share one torch and one numpy. Packages that a
    rival needs in another version go into its own environment.

    Raises:
        Failed: it could not be installed.
    """
    folder, shared = cache() / rival, sysconfig.get_path("purelib")
    contents = "\n".join((REQUIREMENTS[rival], sys.version, shared, ""))
    record = folder / "made_of.txt"
    if not record.exists() or record.read_text() != contents:
        print(f"installing {REQUIREMENTS[rival]} in {folder}", flush=True)
        venv.create(folder, clear=True, with_pip=True, symlinks=True)
        for packages in folder.glob("lib/python*/site-packages"):
            (packages / "shared.pth").write_text(shared + "\n")
        _install(folder, REQUIREMENTS[rival], OWN.get(rival, ()))
        record.write_text(contents)
    return folder / "bin" / "python"


def _install(folder: Path, requirement: str, own: tuple[str, ...]) -> None:
    lines, constraints = (ROOT / "constraints.txt").read_text().splitlines(), folder / "constraints.txt"
    constraints.write_text("\n".join(line for line in lines if line.partition("==")[0] not in own) + "\n")
    command = [
        folder / "bin" / "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--constraint",
        str(constraints),
        requirement,
    ]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        errors = [line for line in result.stderr.splitlines() if line.startswith("ERROR")]
        raise Failed(f"pip could not install {requirement}: {errors[-1] if errors else result.stderr[-300:]}")

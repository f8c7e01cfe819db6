"""The manifest of a run: command, versions, source, machine."""

import functools
import hashlib
import os
import platform
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from rlrun.core.machine import cpu

FILTERS = r"^filter\..*\.(clean|process|required)$"  # settings of git that name programs
PACKAGES = ("rlrun", "torch", "hydra-core", "omegaconf", "gymnasium", "numpy", "wandb", "typer", "rich", "safetensors")


def manifest(command: Sequence[str], *, seed: int, project: Path) -> dict[str, Any]:
    """Return the manifest of a run.

    Args:
        command: the overrides that started it.
        seed: the run's.
        project: folder of the user's own code.
    """
    return {
        "command": list(command),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": seed,
        "project": str(project.absolute()),
        "git": git(project),
        "python": platform.python_version(),
        "packages": dict(versions()),
        "platform": platform.platform(),
        "cpu": cpu(),
        "host": socket.gethostname(),
    }


def git(project: Path) -> dict[str, Any] | None:
    """Return the commit, and a hash of uncommitted changes to tracked files; None without git or a commit."""
    commit = _run_git(project, {}, "rev-parse", "HEAD")
    if commit is None:
        return None
    difference = uncommitted(project)
    if difference is None:
        return None
    dirty = hashlib.sha256(difference).hexdigest() if difference else None
    return {"commit": commit.decode().strip(), "dirty": dirty}


def uncommitted(project: Path) -> bytes | None:
    """Return the uncommitted changes of tracked files, as `git diff` prints them; None without git or a commit."""
    named = _run_git(project, {}, "config", "--null", "--name-only", "--get-regexp", FILTERS) or b""
    keys = named.decode(errors="surrogateescape").split("\0")[:-1]
    variables = {"GIT_CONFIG_COUNT": str(len(keys))}  # these override keys that name programs for git to run
    for number, key in enumerate(keys):
        variables[f"GIT_CONFIG_KEY_{number}"] = key
        variables[f"GIT_CONFIG_VALUE_{number}"] = "false" if key.endswith(".required") else ""
    return _run_git(project, variables, "diff", "--no-ext-diff", "--no-textconv", "--binary", "HEAD")


def _run_git(project: Path, variables: dict[str, str], *arguments: str) -> bytes | None:
    try:
        process = subprocess.run(
            ["git", "-c", "core.fsmonitor=false", "-C", str(project), *arguments],  # or the repository names a program
            capture_output=True,
            timeout=10,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", **variables},  # reading must not touch the user's index
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return process.stdout if process.returncode == 0 else None


@functools.cache
def versions() -> dict[str, str | None]:
    """Return the versions of the main packages of a run."""
    installed: dict[str, str | None] = dict.fromkeys(PACKAGES)
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    return installed

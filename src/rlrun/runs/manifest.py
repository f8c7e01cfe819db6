"""What a run was made with: command, versions, source, machine."""

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

FILTERS = r"^filter\..*\.(clean|process|required)$"  # settings of git that name programs
PACKAGES = ("rlrun", "torch", "hydra-core", "omegaconf", "gymnasium", "numpy", "wandb", "typer", "rich", "safetensors")


def manifest(command: Sequence[str], *, seed: int, project: Path) -> dict[str, Any]:
    """Describe the circumstances of a run.

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


def cpu() -> str | None:
    """Return the processor and how many of its cores there are, as far as the system says."""
    name = cpu_facts("model name") or platform.processor()
    return f"{name}, {os.cpu_count()} cores" if name else None


def instructions() -> str:
    """Return a digest of what the processor can do; code made for one runs on others of the same digest."""
    facts = (platform.machine(), platform.processor(), cpu_facts("model name"), cpu_facts("flags", "Features"))
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def cpu_facts(*names: str) -> str | None:
    """Return what Linux reports of the first core by one of these names."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return None
    fields = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in fields if name.strip() in names), None)


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gpu(device: str) -> str | None:
    """Return the name of a CUDA device, or None."""
    if not device.startswith("cuda"):
        return None
    import torch

    return str(torch.cuda.get_device_name(device))


def has_bfloat16(device: str) -> bool:
    """Return True if a device has instructions for products of bfloat16 numbers, as far as torch knows it.

    That torch computes with them says nothing: it does so on every processor, by float32 where they are missing.
    """
    import torch

    if device.startswith("cuda"):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device != "cpu":
        return False
    report = getattr(torch.cpu, "get_capabilities", None)  # older versions of torch report it of x86 alone
    capabilities = {"avx512_bf16": torch.cpu._is_avx512_bf16_supported()} if report is None else report()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))  # the last one of ARM


def git(project: Path) -> dict[str, Any] | None:
    """Return the commit, and a hash of what tracked files hold beyond it; None without git or a commit."""
    commit = _run_git(project, {}, "rev-parse", "HEAD")
    if commit is None:
        return None
    difference = uncommitted(project)
    if difference is None:
        return None
    dirty = hashlib.sha256(difference).hexdigest() if difference else None
    return {"commit": commit.decode().strip(), "dirty": dirty}


def uncommitted(project: Path) -> bytes | None:
    """Return how tracked files differ from the commit, as `git diff` prints it; None without git or a commit."""
    named = _run_git(project, {}, "config", "--null", "--name-only", "--get-regexp", FILTERS) or b""
    keys = named.decode(errors="surrogateescape").split("\0")[:-1]
    variables = {"GIT_CONFIG_COUNT": str(len(keys))}  # with them git runs none of the programs that these keys name
    for number, key in enumerate(keys):
        variables[f"GIT_CONFIG_KEY_{number}"] = key
        variables[f"GIT_CONFIG_VALUE_{number}"] = "false" if key.endswith(".required") else ""
    return _run_git(project, variables, "diff", "--no-ext-diff", "--no-textconv", "--binary", "HEAD")


def _run_git(project: Path, variables: dict[str, str], *overrides: str) -> bytes | None:
    try:
        process = subprocess.run(
            ["git", "-c", "core.fsmonitor=false", "-C", str(project), *overrides],  # or the repository names a program
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
    """Return the version of each package that a run depends on."""
    installed: dict[str, str | None] = dict.fromkeys(PACKAGES)
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    return installed

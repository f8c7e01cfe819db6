"""What a measurement was made on, without a name or a path of the machine."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import numpy  # noqa: F401 - its version is recorded
from threadpoolctl import threadpool_info

PRODUCTS = "numpy's products"
PACKAGES = ("torch", "numpy", "gymnasium", "hydra-core", "typer")


def machine() -> dict[str, object]:
    """Return date, processor, cores and versions."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        **{package: metadata.version(package) for package in PACKAGES},
        PRODUCTS: kernels(),
    }


def kernels() -> str:
    """Return by what numpy multiplies matrices: the library, and the processor that its kernels are for."""
    libraries = [library for library in threadpool_info() if library["user_api"] == "blas"]
    names = ", ".join(f"{library['internal_api']} for {library.get('architecture', 'any')}" for library in libraries)
    return names or "its own"


def processor() -> str:
    """Return the model of the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def load() -> float:
    """Return how many processes wanted a core in the last minute."""
    return round(os.getloadavg()[0], 2)

"""What this machine has: processor, cores, main memory, GPU."""

import hashlib
import math
import os
import platform
from contextlib import suppress
from pathlib import Path


def cpu() -> str | None:
    """Return the processor's name and its number of cores; None if the system does not name it."""
    name = cpu_facts("model name") or platform.processor()
    return f"{name}, {os.cpu_count()} cores" if name else None


def instructions() -> str:
    """Return a digest of the processor's instructions; code compiled for one runs on others of the same digest."""
    facts = (platform.machine(), platform.processor(), cpu_facts("model name"), cpu_facts("flags", "Features"))
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def cpu_facts(*names: str) -> str | None:
    """Return the first of these fields of /proc/cpuinfo; None on other systems."""
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
    """Return True if torch reports that a device has instructions for bfloat16 products.

    Torch computes with bfloat16 on every processor, by float32 where the instructions are missing.
    """
    import torch

    if device.startswith("cuda"):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device != "cpu":
        return False
    report = getattr(torch.cpu, "get_capabilities", None)  # older versions of torch report it of x86 alone
    capabilities = {"avx512_bf16": torch.cpu._is_avx512_bf16_supported()} if report is None else report()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))  # the last is ARM's


def main_memory() -> float:
    """Return the bytes of main memory of this machine or container; infinite where unknown."""
    if not hasattr(os, "sysconf"):
        return math.inf
    limit = "max"
    with suppress(OSError):
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(memory, int(limit)) if limit.isdigit() else memory

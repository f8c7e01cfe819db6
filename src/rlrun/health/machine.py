"""Cores, threads, GPU and git."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from rlrun import manifest
from rlrun.health.findings import Finding
from rlrun.health.imports import Tried

OMP = "OMP_NUM_THREADS"
DRIVERS = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"), Path("/dev/kfd"))  # Nvidia's, and AMD's


def threads(tried: Mapping[str, Tried]) -> Iterator[Finding]:
    """Tell how many cores this process may use, and how many threads libraries would begin."""
    usable, there = manifest.cores(), os.cpu_count() or 1
    model = (manifest.cpu() or "").rpartition(", ")[0]
    text = f"{usable} of {there} may be used" + (f" ({model})" if model else "")
    yield Finding("ok", "threads", "cores", text)
    value = os.environ.get(OMP)
    begun = tried.get("torch", Tried()).about.get("threads")
    text = f"{OMP}={value or 'unset'}" + ("" if begun is None else f"; torch would begin {begun}, a run sets `threads`")
    if value is not None and not (value.isdecimal() and 1 <= int(value) <= usable):
        yield Finding("note", "threads", OMP, text, f"export {OMP}=1")
    else:
        yield Finding("ok", "threads", OMP, text)


def bfloat16(tried: Mapping[str, Tried]) -> Iterator[Finding]:
    """Tell whether `precision=bf16` is for the CPU of this machine; nothing where torch cannot say it."""
    supported = tried.get("torch", Tried()).about.get("bfloat16")
    if supported is not None:
        text = "has instructions for it; precision=bf16 trains large networks faster"
        yield Finding(
            "ok", "cpu", "bfloat16", text if supported else "has no instructions for it; precision=bf16 is refused"
        )


def gpu(tried: Mapping[str, Tried]) -> Finding:
    """Compare the GPUs of this machine with those that torch can use."""
    torch = tried.get("torch")
    if torch is None or torch.error is not None:
        return Finding("note", "gpu", "torch", "not known, as torch cannot be imported")
    built, gpus = torch.about["cuda"], torch.about["gpus"]
    if gpus:
        return Finding("ok", "gpu", "torch", f"{', '.join(gpus)} (torch is built for {built})")
    there = shutil.which("nvidia-smi") is not None or any(path.exists() for path in DRIVERS)
    if not there:
        return Finding("ok", "gpu", "torch", "none; training is done by the CPU")
    if built is None:
        remedy = "pip install --force-reinstall torch, with the index for your driver: https://pytorch.org/get-started"
        return Finding("note", "gpu", "torch", "this machine has a GPU, and torch is built for the CPU alone", remedy)
    remedy = "compare nvidia-smi with https://pytorch.org/get-started, and look at CUDA_VISIBLE_DEVICES"
    text = f"torch is built for {built} and finds no GPU, though there is a driver"
    return Finding("note", "gpu", "torch", text, remedy)


def git(folder: Path) -> Finding:
    """Tell whether manifests can say from which source a run was made."""
    if shutil.which("git") is None:
        return Finding("note", "git", "git", "is missing: no manifest names the commit of your code", "install git")
    state = manifest.git(folder)
    if state is None:
        return Finding("ok", "git", "git", "there is no commit here for manifests to name")
    return Finding("ok", "git", "git", f"{state['commit'][:12]}{', changed since' if state['dirty'] else ''}")

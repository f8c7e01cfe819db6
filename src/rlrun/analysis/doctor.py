"""Check that a machine is ready to train: packages, torch, threads, disk, plugins; equivalent to `rlrun doctor`."""

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from rlrun.config import places, plugins
from rlrun.core import machine
from rlrun.core.errors import installing
from rlrun.core.files import reason, sized
from rlrun.core.version import VERSION

BUNDLES = {"all", "test", "dev"}  # extras that combine others
MODULES = {"numpy": "numpy", "gymnasium": "gymnasium", "hydra": "hydra-core", "wandb": "wandb", "torch": "torch"}
PATIENCE = 240.0  # time limit of an import in seconds
DRIVERS = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/kfd")  # files of Nvidia's and AMD's drivers
LOW_DISK, MIN_DISK = 1_000_000_000, 50_000_000  # bytes for a memory of images, and for a few small checkpoints


@dataclass(frozen=True)
class HealthFinding:
    """The result of one check."""

    status: Literal["ok", "note", "problem"]  # note: something could be better; problem: training would break
    group: str  # what was checked: `package`, `extra`, `disk`, …
    name: str  # of the item in the group
    text: str
    remedy: str | None = None  # what the user can do

    def describe(self) -> str:
        """Return the line without its status."""
        return f"{self.text}: {self.remedy}" if self.remedy else self.text


@dataclass(frozen=True)
class HealthReport:
    """The results of all checks."""

    findings: list[HealthFinding]

    @property
    def healthy(self) -> bool:
        """True if no check found a problem."""
        return all(finding.status != "problem" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return the object that `rlrun doctor --json` prints."""
        return {"ok": self.healthy, "findings": [asdict(finding) for finding in self.findings]}


def doctor(folder: Path | str = ".") -> HealthReport:
    """Check required and optional packages and the machine, without changing anything.

    Args:
        folder: where runs would be written, into `runs/`.
    """
    return HealthReport([*packages(), *imports(), *processor(), *disk(Path(folder)), *of_plugins()])


def packages() -> Iterator[HealthFinding]:
    """Compare the versions of Python and of required and optional packages with rlrun's requirements."""
    python, wanted = platform.python_version(), next(iter(_fields("Requires-Python")), "")
    fits = SpecifierSet(wanted).contains(python, prereleases=True)
    remedy = None if fits else f"install Python {wanted}"
    yield HealthFinding("ok" if fits else "problem", "package", "python", f"{python} ({sys.executable})", remedy)
    remedy = None if _fields("Version") else f"it is not installed: {installing()}"
    here = Path(__file__).parents[1]
    yield HealthFinding("note" if remedy else "ok", "package", "rlrun", f"{VERSION} ({here})", remedy)
    for need in required():
        fault = _fault(need)
        remedy = fault and f"pip install '{need.name}{need.specifier}'"
        text = fault or f"{metadata.version(need.name)}"
        yield HealthFinding("problem" if fault else "ok", "package", need.name, text, remedy)
    for extra in (name for name in _fields("Provides-Extra") if name not in BUNDLES):
        faults = {need.name: _fault(need) for need in required(extra)}
        lacking = ", ".join(f"{name} {fault}" for name, fault in faults.items() if fault)
        text = lacking or ", ".join(f"{name} {metadata.version(name)}" for name in faults)
        yield HealthFinding("note" if lacking else "ok", "extra", extra, text, installing(extra) if lacking else None)


def required(extra: str = "", package: str = "rlrun") -> Iterator[Requirement]:
    """Yield the requirements of a package or an extra, including nested extras, as in `gymnasium[box2d]`."""
    for need in map(Requirement, _fields("Requires-Dist", package)):
        always, with_extra = (need.marker is None or need.marker.evaluate({"extra": name}) for name in ("", extra))
        if with_extra and always is not bool(extra):
            yield need
            for inner in sorted(need.extras):
                yield from required(inner, need.name)


def _fields(name: str, package: str = "rlrun") -> list[str]:
    """Return the values of a field in a package's metadata; empty if it is not installed."""
    try:
        return metadata.metadata(package).get_all(name) or []
    except metadata.PackageNotFoundError:
        return []


def _fault(need: Requirement) -> str | None:
    """Return a message if a package is missing or has a wrong version, or None."""
    version = next(iter(_fields("Version", need.name)), None)
    if version is not None and need.specifier.contains(version, prereleases=True):
        return None
    state = "is missing" if version is None else f"{version} is installed"
    return f"{state} (wanted {need.specifier})" if need.specifier else state


def imports() -> Iterator[HealthFinding]:
    """Report the import times of large packages, import errors, and the GPUs that torch can use."""
    for module, package in MODULES.items():
        if importlib.util.find_spec(module) is None:
            continue  # the package is missing
        begin, fault = time.perf_counter(), import_fault(module)
        text = fault or f"takes {time.perf_counter() - begin:.1f} s"
        remedy = fault and f"pip install --force-reinstall {package}"
        yield HealthFinding("problem" if fault else "ok", "import", module, text, remedy)
        if module == "torch" and not fault:
            yield gpu()


def import_fault(module: str) -> str | None:
    """Import a module in another process, as the import may crash; return its error, or None."""
    command = [sys.executable, "-P", "-W", "ignore", "-c", f"import {module}"]  # -P: no module of this folder
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return f"fails: it takes more than {PATIENCE:.0f} s"
    lines = [line for line in process.stderr.splitlines() if line.partition(":")[0].replace(".", "_").isidentifier()]
    return f"fails: {lines[-1] if lines else f'exit code {process.returncode}'}" if process.returncode else None


def gpu() -> HealthFinding:
    """Compare the GPUs of this machine with those that torch can use."""
    import torch

    build = f"torch is built for {torch.version.cuda or getattr(torch.version, 'hip', None) or 'the CPU alone'}"
    if torch.cuda.is_available():
        names = ", ".join(torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count()))
        return HealthFinding("ok", "machine", "gpu", f"{names} ({build})")
    if shutil.which("nvidia-smi") is None and not any(map(os.path.exists, DRIVERS)):
        return HealthFinding("ok", "machine", "gpu", f"none ({build})")
    remedy = "look at nvidia-smi and CUDA_VISIBLE_DEVICES, or install torch by https://pytorch.org/get-started"
    return HealthFinding("note", "machine", "gpu", f"{build} and finds none, though there is a driver", remedy)


def processor() -> Iterator[HealthFinding]:
    """Report the usable cores, and the number of threads that libraries would start."""
    usable, threads = machine.cores(), os.environ.get("OMP_NUM_THREADS")
    yield HealthFinding("ok", "machine", "cores", f"{usable} of {os.cpu_count()} may be used")
    fits = threads is None or (threads.isdecimal() and 1 <= int(threads) <= usable)
    text, remedy = f"OMP_NUM_THREADS={threads or 'unset'}", None if fits else "export OMP_NUM_THREADS=1"
    yield HealthFinding("ok" if fits else "note", "machine", "threads", text, remedy)


def disk(folder: Path) -> Iterator[HealthFinding]:
    """Report the free space on the disk for runs."""
    runs = next(path for path in (folder / "runs", *(folder / "runs").absolute().parents) if path.exists())
    usage = shutil.disk_usage(runs)
    text = f"{sized(usage.free)} of {sized(usage.total)} free"
    if usage.free < MIN_DISK:
        yield HealthFinding("problem", "disk", "space", text, "make room, or train elsewhere: --run-dir DIR")
    elif usage.free < LOW_DISK:
        yield HealthFinding("note", "disk", "space", text, "checkpoint.memory=false keeps checkpoints small")
    else:
        yield HealthFinding("ok", "disk", "space", text)
    try:
        with tempfile.TemporaryFile(dir=runs) as file:
            file.write(b"x")
        yield HealthFinding("ok", "disk", "runs/", "can be written")
    except OSError as error:
        text = f"{runs} cannot be written: {reason(error)}"
        yield HealthFinding("problem", "disk", "runs/", text, "use another folder, or --run-dir DIR")


def of_plugins() -> Iterator[HealthFinding]:
    """Report on each plugin, and on config files that a plugin's files replace."""
    for plugin in plugins.installed():
        fault = plugin.problem or (plugin.folder and places.fault(plugin.folder))
        fault = f"is left out: {fault}" if fault else import_fault(plugin.module)
        about = f"{plugin.package} {plugin.version} ({plugin.module})".strip()
        remedy = f"fix it, or pip uninstall {plugin.package}" if fault and plugin.package else None
        yield HealthFinding("note" if fault else "ok", "plugin", plugin.name, fault or about, remedy)
    for config_path, by, place in places.hidden(places.search_path()):
        replaced = f"that of {place.owner}" if place.owner else "the packaged one"
        yield HealthFinding("note", "plugin", by.plugin or "", f"its {config_path} replaces {replaced}")

"""Check that this machine is ready to train: packages, threads, GPU, rendering, disk; equivalent to `rlrun doctor`."""

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from ctypes.util import find_library
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from rlrun import __version__
from rlrun.analysis.doctor.imports import Import, try_imports
from rlrun.config import plugins
from rlrun.core.errors import installing
from rlrun.runs import manifest
from rlrun.runs.files import counted, reason, sized

Status = Literal["ok", "note", "problem"]
OURS = "rlrun"
OMP = "OMP_NUM_THREADS"
DRIVERS = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"), Path("/dev/kfd"))  # Nvidia's, and AMD's
LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa", "glfw": "GL"}  # MUJOCO_GL -> the library that it needs
PACKAGES = {"egl": "libegl1", "osmesa": "libosmesa6", "glfw": "libgl1"}  # … and the system package that installs it
SCREENS = ("DISPLAY", "WAYLAND_DISPLAY")
LOW_DISK = 1_000_000_000  # bytes; a replay memory of images takes more
MIN_DISK = 50_000_000  # bytes of a few checkpoints of small networks


@dataclass(frozen=True)
class HealthFinding:
    """The result of one check.

    Attributes:
        status: `ok`; `note`, something optional is missing or could be better; `problem`, training would break.
        group: what was checked: `package`, `extra`, `disk`, …
        name: of the item in the group.
        text: the result.
        remedy: what the user can do, or None.
    """

    status: Status
    group: str
    name: str
    text: str
    remedy: str | None = None

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
    """Check required and optional packages, and the machine; nothing is changed.

    Packages are imported in separate processes, so a broken one does no harm.

    Args:
        folder: runs would go into its `runs/`.
    """
    packages = wanted()
    results = try_imports(modules(packages))
    return HealthReport(
        [
            python(),
            *core(packages, results),
            *extras(packages, results),
            *processor(results),
            gpu(results),
            *pictures(results),
            *disk(Path(folder)),
            *of_plugins(results),
        ]
    )


@dataclass(frozen=True)
class Package:
    """A package that rlrun or an extra requires.

    Attributes:
        name: of the distribution.
        range: accepted versions; empty = any.
        version: the installed one, or None.
        module: the module to import; None for a package without code.
    """

    name: str
    range: str
    version: str | None
    module: str | None

    @property
    def fits(self) -> bool:
        """Whether the installed version is in the range."""
        return self.version is not None and SpecifierSet(self.range).contains(self.version, prereleases=True)

    def fault(self, results: Mapping[str, Import]) -> str | None:
        """Return the package's fault, or None."""
        if self.version is None:
            return f"is missing (wanted {self.range})" if self.range else "is missing"
        if not self.fits:
            return f"{self.version} is installed, wanted {self.range}"
        error = None if self.module is None else results.get(self.module, Import()).error
        return None if error is None else f"{self.version} is broken: {error}"


def wanted() -> dict[str | None, list[Package]]:
    """Return the packages of each extra; the key None has those that rlrun itself requires."""
    requirements = [*map(Requirement, _fields("Requires-Dist"))]
    core = [requirement for requirement in requirements if _applies(requirement)]
    packages: dict[str | None, list[Package]] = {None: _packages(core)}
    for extra in _fields("Provides-Extra"):
        own = [requirement for requirement in requirements if requirement not in core and _applies(requirement, extra)]
        packages[extra] = _packages(own)
    return packages


def modules(packages: Mapping[str | None, Sequence[Package]]) -> list[str]:
    """Return the modules of all installed packages and plugins."""
    names = [pkg.module for packages in packages.values() for pkg in packages if pkg.module is not None]
    return [*names, *(plugin.module for plugin in plugins.installed() if plugin.problem is None)]


def python() -> HealthFinding:
    """Compare Python's version with the one that rlrun requires."""
    version = platform.python_version()
    if not _fields("Version"):
        return HealthFinding("note", "package", "python", f"{version}; rlrun itself is not installed", installing())
    specifier = next(iter(_fields("Requires-Python")), "")
    if SpecifierSet(specifier).contains(version, prereleases=True):
        return HealthFinding("ok", "package", "python", f"{version} ({specifier})")
    return HealthFinding(
        "problem", "package", "python", f"{version}, wanted {specifier}", f"install Python {specifier}"
    )


def core(packages: Mapping[str | None, Sequence[Package]], results: Mapping[str, Import]) -> Iterator[HealthFinding]:
    """Report on rlrun, and on each package that it requires."""
    yield HealthFinding("ok", "package", OURS, __version__)
    for pkg in packages[None]:
        fault = pkg.fault(results)
        if fault is None:
            text = f"{pkg.version} ({pkg.range})" if pkg.range else f"{pkg.version}"
            yield HealthFinding("ok", "package", pkg.name, text)
        else:
            remedy = f"pip install {_reinstall_option([pkg])}'{pkg.name}{pkg.range}'"
            yield HealthFinding("problem", "package", pkg.name, fault, remedy)


def extras(packages: Mapping[str | None, Sequence[Package]], results: Mapping[str, Import]) -> Iterator[HealthFinding]:
    """Report for each extra which packages are installed and which are missing."""
    for extra, members in packages.items():
        if extra is None:
            continue
        faults = [f"{pkg.name} {fault}" for pkg in members if (fault := pkg.fault(results)) is not None]
        text = ", ".join([*faults, *(f"{pkg.name} {pkg.version}" for pkg in members if pkg.fault(results) is None)])
        if faults:
            yield HealthFinding("note", "extra", extra, text, installing(extra, _reinstall_option(members)))
        else:
            yield HealthFinding("ok", "extra", extra, text)


def _reinstall_option(packages: Iterable[Package]) -> str:
    """Return pip's option to reinstall packages, if all are installed and yet broken."""
    return "--force-reinstall " if all(pkg.fits for pkg in packages) else ""


def _fields(name: str, package: str = OURS) -> list[str]:
    """Return the values of a field of a package's metadata; none where it is not installed."""
    try:
        return metadata.metadata(package).get_all(name) or []
    except metadata.PackageNotFoundError:
        return []


def _applies(requirement: Requirement, extra: str = "") -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _packages(requirements: Iterable[Requirement]) -> list[Package]:
    """Return packages, and the requirements of their extras, such as `gymnasium[box2d]`."""
    packages: dict[str, Package] = {}
    for requirement in requirements:
        inner = [need for need in map(Requirement, _fields("Requires-Dist", requirement.name)) if not _applies(need)]
        chosen = [need for need in inner if any(_applies(need, extra) for extra in requirement.extras)]
        for dependency in (requirement, *chosen):
            version = module = None
            with suppress(metadata.PackageNotFoundError):
                installed = metadata.distribution(dependency.name)
                version, module = installed.version, _module(installed)
            package = Package(dependency.name, str(dependency.specifier), version, module)
            packages.setdefault(canonicalize_name(dependency.name), package)
    return list(packages.values())


def _module(installed: metadata.Distribution) -> str | None:
    """Return the module to import for a package: the one with its name, else the first in alphabetical order."""
    tops = (installed.read_text("top_level.txt") or "").split()
    if not tops:
        files = [file.parts for file in installed.files or () if file.suffix in (".py", ".so", ".pyd")]
        tops = [parts[0].split(".")[0] for parts in files if len(parts) < 3]
    names = sorted({top for top in tops if top.isidentifier() and not top.startswith("_")})
    named = canonicalize_name(installed.name).replace("-", "_")
    return named if named in names else next(iter(names), None)


def of_plugins(results: Mapping[str, Import]) -> Iterator[HealthFinding]:
    """Report on each plugin, and on config files that a plugin's files replace."""
    installed = plugins.installed()
    if not installed:
        return
    from rlrun.config import places

    for plugin in installed:
        error, problem = results.get(plugin.module, Import()).error, plugin.problem
        if plugin.folder is not None:
            problem = problem or places.fault(plugin.folder)
        if problem or error is not None:
            text = f"is left out: {problem}" if problem else f"importing '{plugin.module}' fails: {error}"
            remedy = f"fix it, or pip uninstall {plugin.package}" if plugin.package else None
            yield HealthFinding("note", "plugin", plugin.name, text, remedy)
        elif plugin.folder is not None:
            about = f"{plugin.package} {plugin.version} ({plugin.module})".strip()
            files = counted(len(places.brought(plugin.folder)), "config file")
            yield HealthFinding("ok", "plugin", plugin.name, f"{about}: {files}")
    for config_path, by, place in places.hidden(places.search_path()):
        replaced = f"that of {place.owner}" if place.owner else "the packaged one"
        yield HealthFinding("note", "plugin", by.plugin or "", f"its {config_path} replaces {replaced}")


def processor(results: Mapping[str, Import]) -> Iterator[HealthFinding]:
    """Report the usable cores, the threads that libraries would start, and bfloat16 where torch knows it."""
    usable, total = manifest.cores(), os.cpu_count() or 1
    model = (manifest.cpu() or "").rpartition(", ")[0]
    yield HealthFinding("ok", "threads", "cores", f"{usable} of {total} may be used" + (f" ({model})" if model else ""))
    value, about = os.environ.get(OMP), results.get("torch", Import()).about
    text = f"{OMP}={value or 'unset'}"
    if "threads" in about:
        text += f"; torch would start {about['threads']}, a run sets `threads`"
    if value is None or (value.isdecimal() and 1 <= int(value) <= usable):
        yield HealthFinding("ok", "threads", OMP, text)
    else:
        yield HealthFinding("note", "threads", OMP, text, f"export {OMP}=1")
    if "bfloat16" in about:
        text = "has instructions for it; precision=bf16 trains large networks faster"
        text = text if about["bfloat16"] else "has no instructions for it; precision=bf16 is refused"
        yield HealthFinding("ok", "cpu", "bfloat16", text)


def gpu(results: Mapping[str, Import]) -> HealthFinding:
    """Compare the GPUs of this machine with those that torch can use."""
    torch = results.get("torch")
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


def pictures(results: Mapping[str, Import]) -> Iterator[HealthFinding]:
    """Report on the screen, MuJoCo's rendering and the encoder."""
    screen = next((f"{name}={os.environ[name]}" for name in SCREENS if os.environ.get(name)), None)
    if sys.platform not in ("linux", "cygwin"):
        screen = "there is one"
    yield HealthFinding("ok", "pictures", "display", screen or "none; videos are drawn without")

    chosen = os.environ.get("MUJOCO_GL", "").lower()
    backends = [backend for backend, library in LIBRARIES.items() if find_library(library) is not None]
    text = f"MUJOCO_GL={chosen or 'unset'}, libraries for {', '.join(backends) or 'none'}"
    backend = chosen or "egl"  # the default of videos
    if backend == "glfw" and screen is None:
        yield HealthFinding("note", "pictures", "mujoco", f"{text}: glfw needs a display", "export MUJOCO_GL=egl")
    elif backend in LIBRARIES and backend not in backends:
        remedy = f"apt-get install {PACKAGES[backend]}"
        yield HealthFinding("note", "pictures", "mujoco", f"{text}: no videos of MuJoCo", remedy)
    else:
        yield HealthFinding("ok", "pictures", "mujoco", text)

    encoder = results.get("imageio_ffmpeg", Import("is missing"))
    if encoder.error is None:
        yield HealthFinding("ok", "pictures", "ffmpeg", f"{encoder.about['version']} ({encoder.about['program']})")
    else:
        program_is_missing = encoder.error.startswith("RuntimeError")  # the package is installed
        remedy = "set IMAGEIO_FFMPEG_EXE to the path of an ffmpeg" if program_is_missing else installing("video")
        yield HealthFinding("note", "pictures", "ffmpeg", f"no videos: {encoder.error}", remedy)


def disk(folder: Path) -> Iterator[HealthFinding]:
    """Report on the disk that holds runs."""
    existing = _existing(folder)
    usage, place = shutil.disk_usage(existing), str(existing.absolute())
    free, text = usage.free, f"{sized(usage.free)} of {sized(usage.total)} free"
    if free < MIN_DISK:
        yield HealthFinding("problem", "disk", place, text, "make room, or train elsewhere: --run-dir DIR")
    elif free < LOW_DISK:
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
        yield HealthFinding("problem", "disk", "runs/", text, "use another folder, or --run-dir DIR")


def _existing(folder: Path) -> Path:
    """Return a folder, or its nearest parent that exists."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())

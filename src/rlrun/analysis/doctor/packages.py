"""What is installed of what rlrun depends on and of its extras, as its own metadata names them, and plugins."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from rlrun import __version__
from rlrun.analysis.doctor.findings import HealthFinding
from rlrun.analysis.doctor.imports import Tried
from rlrun.core.errors import installing
from rlrun.runs.files import counted
from rlrun.security import plugins

OURS = "rlrun"


@dataclass(frozen=True)
class Package:
    """A package that is wanted.

    Attributes:
        name: as it is installed by.
        range: of versions that will do; empty = any.
        version: what is installed, or None.
        module: what is imported of it; None where it has no code of its own.
    """

    name: str
    range: str
    version: str | None
    module: str | None

    @property
    def fits(self) -> bool:
        """Whether the installed version lies in the range."""
        return self.version is not None and SpecifierSet(self.range).contains(self.version, prereleases=True)

    def fault(self, tried: Mapping[str, Tried]) -> str | None:
        """Return what is wrong with it, or None."""
        if self.version is None:
            return f"is missing (wanted {self.range})" if self.range else "is missing"
        if not self.fits:
            return f"{self.version} is installed, wanted {self.range}"
        error = None if self.module is None else tried.get(self.module, Tried()).error
        return None if error is None else f"{self.version} is broken: {error}"


def wanted() -> dict[str | None, list[Package]]:
    """Return the packages of each extra; those that rlrun cannot do without stand under None."""
    requirements = _requirements(OURS)
    core = [requirement for requirement in requirements if _applies(requirement)]
    packages: dict[str | None, list[Package]] = {None: _packages(core)}
    for extra in _fields("Provides-Extra"):
        own = [requirement for requirement in requirements if requirement not in core and _applies(requirement, extra)]
        packages[extra] = _packages(own)
    return packages


def modules(packages: Mapping[str | None, Sequence[Package]]) -> list[str]:
    """Return the modules of all packages that are installed, and those that plugins name."""
    names = [pkg.module for packages in packages.values() for pkg in packages if pkg.module is not None]
    return [*names, *(plugin.module for plugin in plugins.sound())]


def python() -> HealthFinding:
    """Compare Python with what rlrun asks for."""
    version = platform.python_version()
    if not _fields("Version"):
        return HealthFinding("note", "package", "python", f"{version}; rlrun itself is not installed", installing())
    specifier = next(iter(_fields("Requires-Python")), "")
    if SpecifierSet(specifier).contains(version, prereleases=True):
        return HealthFinding("ok", "package", "python", f"{version} ({specifier})")
    return HealthFinding(
        "problem", "package", "python", f"{version}, wanted {specifier}", f"install Python {specifier}"
    )


def core(packages: Mapping[str | None, Sequence[Package]], tried: Mapping[str, Tried]) -> Iterator[HealthFinding]:
    """Tell of rlrun, and of each package that it cannot do without."""
    yield HealthFinding("ok", "package", OURS, __version__)
    for pkg in packages[None]:
        fault = pkg.fault(tried)
        if fault is None:
            yield HealthFinding(
                "ok", "package", pkg.name, f"{pkg.version} ({pkg.range})" if pkg.range else f"{pkg.version}"
            )
        else:
            yield HealthFinding(
                "problem", "package", pkg.name, fault, f"pip install {_again([pkg])}'{pkg.name}{pkg.range}'"
            )


def extras(packages: Mapping[str | None, Sequence[Package]], tried: Mapping[str, Tried]) -> Iterator[HealthFinding]:
    """Tell of each extra what is installed of it and what is not."""
    for extra, members in packages.items():
        if extra is None:
            continue
        faults = [f"{pkg.name} {fault}" for pkg in members if (fault := pkg.fault(tried)) is not None]
        text = ", ".join([*faults, *(f"{pkg.name} {pkg.version}" for pkg in members if pkg.fault(tried) is None)])
        if faults:
            yield HealthFinding("note", "extra", extra, text, installing(extra, _again(members)))
        else:
            yield HealthFinding("ok", "extra", extra, text)


def _again(packages: Iterable[Package]) -> str:
    """Return the option of pip for packages that are broken though each of them is there."""
    return "--force-reinstall " if all(pkg.fits for pkg in packages) else ""


def _fields(name: str) -> list[str]:
    """Return the values of a field of rlrun's metadata; none where it is not installed."""
    try:
        return metadata.metadata(OURS).get_all(name) or []
    except metadata.PackageNotFoundError:
        return []


def _requirements(name: str) -> list[Requirement]:
    """Return what a package asks for, with its extras; nothing where it is not installed."""
    try:
        return [Requirement(text) for text in metadata.requires(name) or []]
    except metadata.PackageNotFoundError:
        return []


def _applies(requirement: Requirement, extra: str = "") -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _packages(requirements: Iterable[Requirement]) -> list[Package]:
    """Return packages, and what the extras of each ask for, such as those of `gymnasium[box2d]`."""
    packages: dict[str, Package] = {}
    for requirement in requirements:
        inner = [dependency for dependency in _requirements(requirement.name) if not _applies(dependency)]
        chosen = [
            dependency for dependency in inner if any(_applies(dependency, extra) for extra in requirement.extras)
        ]
        for dependency in (requirement, *chosen):
            packages.setdefault(canonicalize_name(dependency.name), _package(dependency))
    return list(packages.values())


def _package(requirement: Requirement) -> Package:
    specifier = str(requirement.specifier)
    try:
        installed = metadata.distribution(requirement.name)
    except metadata.PackageNotFoundError:
        return Package(requirement.name, specifier, None, None)
    return Package(requirement.name, specifier, installed.version, _module(installed))


def _module(installed: metadata.Distribution) -> str | None:
    """Return what is imported of a package: what is called like it, else the first of its modules by name."""
    tops = (installed.read_text("top_level.txt") or "").split()
    if not tops:
        files = [file.parts for file in installed.files or () if file.suffix in (".py", ".so", ".pyd")]
        tops = [parts[0].split(".")[0] for parts in files if len(parts) < 3]
    names = sorted({top for top in tops if top.isidentifier() and not top.startswith("_")})
    named = canonicalize_name(installed.name).replace("-", "_")
    return named if named in names else next(iter(names), None)


def of_plugins(tried: Mapping[str, Tried]) -> Iterator[HealthFinding]:
    """Tell of each plugin, and of the files that those of one hide."""
    installed = plugins.installed()
    if not installed:
        return
    from rlrun.config import places, plugged

    for plugin in installed:
        error, problem = tried.get(plugin.module, Tried()).error, plugin.problem
        if plugin.folder is not None:
            problem = problem or plugged.fault(plugin.folder)
        if problem or error is not None:
            text = f"is left out: {problem}" if problem else f"importing '{plugin.module}' fails: {error}"
            remedy = f"mend it, or pip uninstall {plugin.package}" if plugin.package else None
            yield HealthFinding("note", "plugin", plugin.name, text, remedy)
        elif plugin.folder is not None:
            about = f"{plugin.package} {plugin.version} ({plugin.module})".strip()
            files = counted(len(plugged.brought(plugin.folder)), "config file")
            yield HealthFinding("ok", "plugin", plugin.name, f"{about}: {files}")
    for config_path, by, place in plugged.hidden(places.search_path()):
        whose = f"that of {place.owner}" if place.owner else "the packaged one"
        yield HealthFinding("note", "plugin", by.plugin or "", f"its {config_path} goes before {whose}")

"""What is installed of what rlrun depends on and of its extras, as its own metadata names them."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from rlrun import __version__
from rlrun.errors import installing
from rlrun.health.findings import Finding
from rlrun.health.imports import Tried

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


def wanted() -> dict[str | None, list[Package]]:
    """Return the packages of each extra; those that rlrun cannot do without stand under None."""
    try:
        texts, extras = metadata.requires(OURS) or [], metadata.metadata(OURS).get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:
        return {}
    requirements = [Requirement(text) for text in texts]
    core = [requirement for requirement in requirements if _applies(requirement, None)]
    packages: dict[str | None, list[Package]] = {None: _packages(core)}
    for extra in extras:
        own = [requirement for requirement in requirements if requirement not in core and _applies(requirement, extra)]
        packages[extra] = _packages(own)
    return packages


def modules(packages: Mapping[str | None, Sequence[Package]]) -> list[str]:
    """Return the modules of all packages that are installed."""
    return [pkg.module for packages in packages.values() for pkg in packages if pkg.module is not None]


def python() -> Finding:
    """Compare Python with what rlrun asks for."""
    version = platform.python_version()
    try:
        (specifier,) = metadata.metadata(OURS).get_all("Requires-Python") or [""]
    except metadata.PackageNotFoundError:
        return Finding("note", "package", "python", f"{version}; rlrun itself is not installed", installing())
    if SpecifierSet(specifier).contains(version, prereleases=True):
        return Finding("ok", "package", "python", f"{version} ({specifier})")
    return Finding("problem", "package", "python", f"{version}, wanted {specifier}", f"install Python {specifier}")


def core(packages: Mapping[str | None, Sequence[Package]], tried: Mapping[str, Tried]) -> Iterator[Finding]:
    """Tell of rlrun, and of each package that it cannot do without."""
    yield Finding("ok", "package", OURS, __version__)
    for pkg in packages.get(None, ()):
        fault = _fault(pkg, tried)
        if fault is None:
            yield Finding("ok", "package", pkg.name, f"{pkg.version} ({pkg.range})" if pkg.range else f"{pkg.version}")
        else:
            again = "" if pkg.version is None or not pkg.fits else "--force-reinstall "
            yield Finding("problem", "package", pkg.name, fault, f"pip install {again}'{pkg.name}{pkg.range}'")


def extras(found: Mapping[str | None, Sequence[Package]], tried: Mapping[str, Tried]) -> Iterator[Finding]:
    """Tell of each extra what is installed of it and what is not."""
    for extra, packages in found.items():
        if extra is None:
            continue
        faults = [f"{pkg.name} {fault}" for pkg in packages if (fault := _fault(pkg, tried)) is not None]
        there = [f"{pkg.name} {pkg.version}" for pkg in packages if _fault(pkg, tried) is None]
        if not faults:
            yield Finding("ok", "extra", extra, ", ".join(there))
            continue
        again = "" if any(pkg.version is None or not pkg.fits for pkg in packages) else "--force-reinstall "
        yield Finding("note", "extra", extra, ", ".join([*faults, *there]), installing(extra, again))


def _fault(pkg: Package, tried: Mapping[str, Tried]) -> str | None:
    """Return what is wrong with a package, or None."""
    if pkg.version is None:
        return f"is missing (wanted {pkg.range})" if pkg.range else "is missing"
    if not pkg.fits:
        return f"{pkg.version} is installed, wanted {pkg.range}"
    error = None if pkg.module is None else tried.get(pkg.module, Tried()).error
    return None if error is None else f"{pkg.version} is broken: {error}"


def _applies(requirement: Requirement, extra: str | None) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra or ""})


def _packages(requirements: Iterable[Requirement]) -> list[Package]:
    packages: dict[str, Package] = {}
    for requirement in requirements:
        for dependency in (requirement, *_beneath(requirement)):
            packages.setdefault(canonicalize_name(dependency.name), _package(dependency))
    return list(packages.values())


def _beneath(requirement: Requirement) -> list[Requirement]:
    """Return what the extras of a package ask for, such as those of `gymnasium[box2d]`."""
    try:
        texts = metadata.requires(requirement.name) or []
    except metadata.PackageNotFoundError:
        return []
    named = [Requirement(text) for text in texts]
    inner = [dependency for dependency in named if not _applies(dependency, None)]
    return [dependency for dependency in inner if any(_applies(dependency, extra) for extra in requirement.extras)]


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

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
    core = [one for one in requirements if _applies(one, None)]
    found: dict[str | None, list[Package]] = {None: _packages(core)}
    for extra in extras:
        own = [one for one in requirements if one not in core and _applies(one, extra)]
        found[extra] = _packages(own)
    return found


def modules(found: Mapping[str | None, Sequence[Package]]) -> list[str]:
    """Return the modules of all packages that are installed."""
    return [one.module for packages in found.values() for one in packages if one.module is not None]


def python() -> Finding:
    """Compare Python with what rlrun asks for."""
    version = platform.python_version()
    try:
        (asked,) = metadata.metadata(OURS).get_all("Requires-Python") or [""]
    except metadata.PackageNotFoundError:
        return Finding("note", "package", "python", f"{version}; rlrun itself is not installed", installing())
    if SpecifierSet(asked).contains(version, prereleases=True):
        return Finding("ok", "package", "python", f"{version} ({asked})")
    return Finding("problem", "package", "python", f"{version}, wanted {asked}", f"install Python {asked}")


def core(found: Mapping[str | None, Sequence[Package]], tried: Mapping[str, Tried]) -> Iterator[Finding]:
    """Tell of rlrun, and of each package that it cannot do without."""
    yield Finding("ok", "package", OURS, __version__)
    for one in found.get(None, ()):
        fault = _fault(one, tried)
        if fault is None:
            yield Finding("ok", "package", one.name, f"{one.version} ({one.range})" if one.range else f"{one.version}")
        else:
            again = "" if one.version is None or not one.fits else "--force-reinstall "
            yield Finding("problem", "package", one.name, fault, f"pip install {again}'{one.name}{one.range}'")


def extras(found: Mapping[str | None, Sequence[Package]], tried: Mapping[str, Tried]) -> Iterator[Finding]:
    """Tell of each extra what is installed of it and what is not."""
    for extra, packages in found.items():
        if extra is None:
            continue
        faults = [f"{one.name} {fault}" for one in packages if (fault := _fault(one, tried)) is not None]
        there = [f"{one.name} {one.version}" for one in packages if _fault(one, tried) is None]
        if not faults:
            yield Finding("ok", "extra", extra, ", ".join(there))
            continue
        again = "" if any(one.version is None or not one.fits for one in packages) else "--force-reinstall "
        yield Finding("note", "extra", extra, ", ".join([*faults, *there]), installing(extra, again))


def _fault(one: Package, tried: Mapping[str, Tried]) -> str | None:
    """Return what is wrong with a package, or None."""
    if one.version is None:
        return f"is missing (wanted {one.range})" if one.range else "is missing"
    if not one.fits:
        return f"{one.version} is installed, wanted {one.range}"
    error = None if one.module is None else tried.get(one.module, Tried()).error
    return None if error is None else f"{one.version} is broken: {error}"


def _applies(requirement: Requirement, extra: str | None) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra or ""})


def _packages(requirements: Iterable[Requirement]) -> list[Package]:
    found: dict[str, Package] = {}
    for requirement in requirements:
        for one in (requirement, *_beneath(requirement)):
            found.setdefault(canonicalize_name(one.name), _package(one))
    return list(found.values())


def _beneath(requirement: Requirement) -> list[Requirement]:
    """Return what the extras of a package ask for, such as those of `gymnasium[box2d]`."""
    try:
        texts = metadata.requires(requirement.name) or []
    except metadata.PackageNotFoundError:
        return []
    named = [Requirement(text) for text in texts]
    inner = [one for one in named if not _applies(one, None)]
    return [one for one in inner if any(_applies(one, extra) for extra in requirement.extras)]


def _package(requirement: Requirement) -> Package:
    asked = str(requirement.specifier)
    try:
        installed = metadata.distribution(requirement.name)
    except metadata.PackageNotFoundError:
        return Package(requirement.name, asked, None, None)
    return Package(requirement.name, asked, installed.version, _module(installed))


def _module(installed: metadata.Distribution) -> str | None:
    """Return what is imported of a package: what is called like it, else the first of its modules by name."""
    tops = (installed.read_text("top_level.txt") or "").split()
    if not tops:
        files = [file.parts for file in installed.files or () if file.suffix in (".py", ".so", ".pyd")]
        tops = [parts[0].split(".")[0] for parts in files if len(parts) < 3]
    names = sorted({top for top in tops if top.isidentifier() and not top.startswith("_")})
    named = canonicalize_name(installed.name).replace("-", "_")
    return named if named in names else next(iter(names), None)

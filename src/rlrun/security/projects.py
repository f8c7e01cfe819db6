"""Which modules are files of a folder, found without importing them."""

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path


def provides(folder: Path, name: str) -> bool:
    """Return True if a dotted name leads to a file of a project, and make it importable then.

    A project's modules are in its folder or its `src/`. Code inside a run directory is never trusted.
    """
    top = name.split(".")[0]
    for place in (folder, folder / "src"):
        if not _holds(place, name):
            continue
        spec = _spec(top)
        if spec is None and top not in sys.modules and place == folder:
            _append(place)
            return True
        return _same(spec, _spec_in(place, top))  # else another module of that name comes first
    return False


def find(module: str, folders: Iterable[Path]) -> bool:
    """Return True if a top-level module can be imported, after adding the first folder that has it where need be."""
    if module in sys.modules or _spec(module) is not None:
        return True
    for folder in folders:
        if _holds(folder, module):
            _append(folder)
            return True
    return False


def in_a_run(folder: Path) -> bool:
    """Return True if a folder is that of a run or a sweep, or inside one."""
    notes = (("manifest.json", "config.yaml"), ("sweep.json", "jobs.sqlite"))
    above = {path for place in (folder.absolute(), folder.resolve()) for path in (place, *place.parents)}
    return any(all((path / name).is_file() for name in names) for path in above for names in notes)


def _append(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # last: nothing in it may replace an installed package


def _holds(folder: Path, name: str) -> bool:
    first, *rest = name.split(".")
    spec = _spec_in(folder, first)
    if spec is None:
        return False
    if spec.origin is None and not any((folder / first).glob("*.py")):  # a folder without __init__.py
        return False
    inner = folder / first
    return not any(in_a_run(inner.joinpath(*rest[:count])) for count in range(len(rest) + 1))


def _spec(module: str) -> ModuleSpec | None:
    """Return where a top-level module would be imported from."""
    try:
        return importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None


def _spec_in(folder: Path, module: str) -> ModuleSpec | None:
    importlib.invalidate_caches()
    try:
        return PathFinder.find_spec(module, [str(folder)])
    except (ImportError, ValueError):
        return None


def _same(first: ModuleSpec | None, second: ModuleSpec | None) -> bool:
    if first is None or second is None or (first.origin is None) != (second.origin is None):
        return False
    if first.origin is not None and second.origin is not None:
        return Path(first.origin).resolve() == Path(second.origin).resolve()
    places = [{Path(path).resolve() for path in spec.submodule_search_locations or ()} for spec in (first, second)]
    return places[0] == places[1]

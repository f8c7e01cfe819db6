"""A project that trains at once: files to change, in a folder of the user's; the Python equivalent of `rlrun init`."""

import importlib.util
import keyword
import os
import re
import shutil
import sys
from pathlib import Path

from rlrun.core.errors import RequestError, RlrunError, installing
from rlrun.core.files import place_of, reason, require_writable, sync_directory, write_text

TEMPLATE = Path(__file__).with_name("template")
SUFFIX = ".template"  # no tool takes the files for ours
WORD, INSTALL = "{{project}}", "{{install}}"  # what files hold the project's name and rlrun's pip command for
PACKAGE = "package"  # the folder that gets the project's name
FOLDERS = ("conf", "tests", "runs", "sweeps")  # other folders of a project


def init(folder: Path | str = ".") -> Path:
    """Make a project: its own environment, network, loss, configuration and tests. All files appear, or none.

    Args:
        folder: a new one, or an empty one; its name becomes that of the project's package.

    Returns:
        The folder.

    Raises:
        RequestError: it holds something, its name is no package's, or nothing can be written there.
        RlrunError: it cannot be written.
    """
    place = place_of(folder)
    place = place.resolve() if not place.name else place
    _require_name(place.name)
    exists = os.path.lexists(place)
    if exists and not place.is_dir():
        raise RequestError(f"init: {place} is a file")
    if exists and any(place.iterdir()):
        raise RequestError(f"init: {place} is not empty, and no file is ever replaced; name a new folder")
    require_writable(next(path for path in (place, *place.parents) if path.is_dir()))
    built = place if exists else place.with_name(f".{place.name}.{os.getpid()}.tmp")
    try:
        _write(built, place.name)
        if not exists:
            built.rename(place)
        sync_directory(place.parent)
    except BaseException as error:
        for path in built.glob("*") if exists else [built]:  # the folder was empty
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise RlrunError(f"{place} cannot be written: {reason(error)}") from error
        raise
    return place


def _require_name(name: str) -> None:
    """Refuse a name under which a project's modules could not be imported.

    Raises:
        RequestError: with a name that will do.
    """
    why = _fault(name)
    if why:
        package = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
        fitting = f"my_{package}".rstrip("_") if _fault(package) else package
        raise RequestError(f"init: the folder's name becomes a Python package's, and '{name}' is {why}; try {fitting}")


def _fault(name: str) -> str:
    """Return what is wrong with a name; an empty text for a good one."""
    if not (name.isidentifier() and name.isascii()) or name.strip("_") != name or keyword.iskeyword(name):
        return "invalid"
    if name in FOLDERS:
        return "a folder of the project"
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return "another package"
    # a project stands behind all modules that are installed; a mere folder of the working directory is none
    taken = name in sys.stdlib_module_names or (spec is not None and spec.origin is not None)
    return "another package" if taken else ""


def _write(folder: Path, name: str) -> None:
    for path in sorted(TEMPLATE.rglob(f"*{SUFFIX}")):
        parts = [name if part == PACKAGE else part for part in path.relative_to(TEMPLATE).parts]
        file = folder.joinpath(*parts).with_suffix("")
        file = file.with_name(f".{file.name}") if file.name == "gitignore" else file
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, path.read_text(encoding="utf-8").replace(WORD, name).replace(INSTALL, installing()))

"""Create a new project that can train at once, from templates; the Python equivalent of `rlrun init`."""

from __future__ import annotations

import importlib.util
import keyword
import os
import re
import sys
from contextlib import suppress
from pathlib import Path

from rlrun.core.errors import RequestError, RlrunError, installing
from rlrun.runs.files import place_of, reason, sync_directory, write_text

TEMPLATE = Path(__file__).with_name("template")
SUFFIX = ".template"  # so that no tool treats the files as code of this repository
WORD, INSTALL = "{{project}}", "{{install}}"  # placeholders for the project's name and rlrun's pip command
PACKAGE = "package"  # the folder that gets the project's name
FOLDERS = ("conf", "tests", "runs", "sweeps")  # other folders of a project


def init(folder: Path | str = ".") -> Path:
    """Create a project with its own environment, network, loss, configuration and tests: all files, or none.

    Args:
        folder: a new or an empty one; its name becomes that of the project's package.

    Returns:
        The folder.

    Raises:
        RequestError: it is not empty, or its name is not valid for a package.
        RlrunError: it cannot be written.
    """
    place = place_of(folder)
    place = place.resolve() if not place.name else place
    require_name(place.name)
    _require_empty(place)
    written: list[Path] = []
    try:
        try:
            _write(place, place.name, written)
        except BaseException:
            for path in reversed(written):  # nothing that anybody else put there
                with suppress(OSError):
                    path.rmdir() if path.is_dir() else path.unlink()
            raise
        sync_directory(place.parent)
    except OSError as error:
        raise RlrunError(f"{place} cannot be written: {reason(error)}") from error
    return place


def require_name(name: str) -> None:
    """Refuse a name under which a project's modules could not be imported.

    Raises:
        RequestError: with a suggested name.
    """
    if not (name.isidentifier() and name.isascii()) or name.strip("_") != name or keyword.iskeyword(name):
        raise RequestError(f"init: the folder's name becomes a Python package's, and '{name}' is invalid; {_try(name)}")
    if name in FOLDERS or _is_taken(name):
        why = "a folder of the project" if name in FOLDERS else "another package"
        raise RequestError(f"init: the folder's name becomes a Python package's, and '{name}' is {why}; {_try(name)}")


def _try(name: str) -> str:
    package = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    fits = (
        package.isidentifier() and not keyword.iskeyword(package) and package not in FOLDERS and not _is_taken(package)
    )
    return f"try {package if fits else f'my_{package}'.rstrip('_')}"


def _is_taken(name: str) -> bool:
    """Return True if a module of that name is installed: it would be imported before the project's."""
    if name in sys.stdlib_module_names:
        return True
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return True
    return spec is not None and spec.origin is not None  # not a mere folder of the working directory


def _require_empty(place: Path) -> None:
    if not os.path.lexists(place):
        return
    if not place.is_dir():
        raise RequestError(f"init: {place} is a file")
    if any(place.iterdir()):
        raise RequestError(f"init: {place} is not empty, and no file is ever replaced; name a new folder")


def _write(place: Path, name: str, written: list[Path]) -> None:
    for path in sorted(TEMPLATE.rglob(f"*{SUFFIX}")):
        parts = [name if part == PACKAGE else part for part in path.relative_to(TEMPLATE).parts]
        file = place.joinpath(*parts).with_suffix("")
        file = file.with_name(f".{file.name}") if file.name == "gitignore" else file
        written += [*(folder for folder in reversed(file.parents) if not folder.exists()), file]
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, path.read_text(encoding="utf-8").replace(WORD, name).replace(INSTALL, installing()))

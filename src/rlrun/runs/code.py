"""Copies of a user's code and uncommitted changes, stored with a run."""

import sys
import sysconfig
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path

from rlrun.core.errors import ConfigError, RlrunError
from rlrun.core.files import reason
from rlrun.runs.manifest import uncommitted

FOLDER = "code"  # of a run
LIMIT = 10_000_000  # bytes of all files, and of the difference


class Code:
    """Some files of a project, and its uncommitted changes.

    Args:
        names: of files, or patterns of them, relative to the project; None = nothing is stored.
        project: folder of the user's own code.

    Raises:
        ConfigError: a file is missing or outside of the project, or all together are too large.
    """

    def __init__(self, names: Sequence[str] | None, project: Path) -> None:
        self.project, self.unmatched = project.resolve(), []
        self.files: list[Path] = []
        self.kept = names is not None
        for name in names or ():
            inside = bool(name) and not Path(name).is_absolute() and ".." not in Path(name).parts
            files = sorted(path for path in self.project.glob(name) if path.is_file()) if inside else []
            if not inside or not all(path.resolve().is_relative_to(self.project) for path in files):
                raise ConfigError(f"log.code: '{name}' is outside of the project {self.project}")
            if not files and "*" not in name:
                raise ConfigError(f"log.code: there is no file '{name}' in {self.project}")
            self.unmatched += [] if files else [name]
            self.files += files
        if (size := sum(path.stat().st_size for path in self.files)) > LIMIT:
            raise ConfigError(f"log.code: its files have {size:,} bytes, more than {LIMIT:,}; name fewer")

    def save(self, run: Path, start: int = 0) -> None:
        """Write the files into `code/` of a run, and `uncommitted.diff`; start: number of the resume, 0 = none.

        Raises:
            RlrunError: the disk does not take them.
        """
        if not self.kept:
            return
        folder = run / FOLDER / f"resume_{start}" if start else run / FOLDER
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for path in self.files:
                copy = folder / path.relative_to(self.project)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(path.read_bytes())
            difference = uncommitted(self.project) or b""
            if 0 < len(difference) <= LIMIT:
                (folder / "uncommitted.diff").write_bytes(difference)
        except OSError as error:
            raise RlrunError(f"{folder} cannot be written: {reason(error)}") from error

    def digests(self) -> dict[str, str]:
        """Return a digest of each file and of each imported module of the project, by its path within the project."""
        paths = sorted({*self.files, *_modules_of(self.project)})
        return {path.relative_to(self.project).as_posix(): sha256(path.read_bytes()).hexdigest() for path in paths}

    def notes(self) -> list[str]:
        """Return a warning for each pattern that no file matches."""
        return [f"log.code: no file in {self.project} matches '{name}'" for name in self.unmatched]


def _modules_of(project: Path) -> Iterator[Path]:
    """Yield the files of a project's own imported modules, without packages that are installed within it."""
    library, own = sysconfig.get_path("stdlib"), Path(__file__).resolve().parents[1]
    files = {str(file) for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))}
    installed = ("site-packages", "dist-packages", library, str(own))  # most modules; skips resolving their paths
    for path in (Path(file).resolve() for file in files if not any(part in file for part in installed)):
        if path.is_relative_to(project) and path.is_file() and not path.is_relative_to(own):
            yield path

"""Whether this machine is ready to train: packages, threads, GPU, pictures, disk; the twin of `rlrun doctor`."""

from __future__ import annotations

from pathlib import Path

from rlrun.health import disk, machine, packages, pictures, plugged
from rlrun.health.findings import Diagnosis, Finding
from rlrun.health.imports import try_imports

__all__ = ["Diagnosis", "Finding", "doctor"]


def doctor(folder: Path | str = ".") -> Diagnosis:
    """Examine what training needs and what is optional; nothing is changed.

    Packages are imported in processes of their own, so one that is broken harms nobody.

    Args:
        folder: where runs would go: beneath its `runs/`.
    """
    wanted = packages.wanted()
    tried = try_imports([*packages.modules(wanted), *plugged.modules()])
    return Diagnosis(
        [
            packages.python(),
            *packages.core(wanted, tried),
            *packages.extras(wanted, tried),
            *machine.threads(tried),
            *machine.bfloat16(tried),
            machine.gpu(tried),
            *pictures.findings(tried),
            *disk.findings(Path(folder)),
            machine.git(Path(folder)),
            *plugged.findings(tried),
        ]
    )

"""Whether this machine is ready to train: packages, threads, GPU, pictures, disk; equivalent to `rlrun doctor`."""

from __future__ import annotations

from pathlib import Path

from rlrun.analysis.doctor import machine, packages
from rlrun.analysis.doctor.findings import HealthFinding, HealthReport
from rlrun.analysis.doctor.imports import try_imports

__all__ = ["HealthFinding", "HealthReport", "doctor"]


def doctor(folder: Path | str = ".") -> HealthReport:
    """Examine what training needs and what is optional; nothing is changed.

    Packages are imported in processes of their own, so one that is broken harms nobody.

    Args:
        folder: where runs would go: beneath its `runs/`.
    """
    wanted = packages.wanted()
    tried = try_imports(packages.modules(wanted))
    return HealthReport(
        [
            packages.python(),
            *packages.core(wanted, tried),
            *packages.extras(wanted, tried),
            *machine.processor(tried),
            machine.gpu(tried),
            *machine.pictures(tried),
            *machine.disk(Path(folder)),
            machine.git(Path(folder)),
            *packages.of_plugins(tried),
        ]
    )

"""What tests of the benchmarks share: `python -m pytest benchmarks/tests`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from tests.conftest import pytest_make_collect_report, pytest_runtest_makereport, quick_disk, quick_imports
from tests.forked import Forked

__all__ = ["pytest_make_collect_report", "pytest_runtest_makereport", "quick_disk", "quick_imports"]


@pytest.fixture
def load() -> Callable[[str], ModuleType]:
    """Import a module of the benchmarks."""
    return lambda name: importlib.import_module(f"benchmarks.{name}")


@pytest.fixture
def forked() -> Any:
    """Start a command in a process that costs little."""
    return Forked


@pytest.fixture
def warm(load, forked, monkeypatch):
    """Let what learns, and what is timed within its process, run in processes that cost little."""
    process = load("process")

    def run(arguments, *, folder, **_):
        option, module, *rest = arguments
        assert option == "-m"
        with monkeypatch.context() as patch:
            patch.chdir(folder)
            started = forked(rest, module=module)
        out, err = started.communicate(timeout=120)
        assert started.returncode == 0, err
        return process.Finished(out, 0.0)

    for module in (process, load("claims"), load("asynchronous")):
        monkeypatch.setattr(module, "run", run)

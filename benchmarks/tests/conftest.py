"""What tests of the benchmarks share: `python -m pytest benchmarks/tests`."""

from collections.abc import Callable
from typing import Any

import pytest
from benchmarks import asynchronous, claims, page, process, startup
from tests.conftest import (
    pytest_make_collect_report,
    pytest_runtest_makereport,
    quick_disk,
    quick_imports,
    state_folder,
)
from tests.forked import Forked

__all__ = ["pytest_make_collect_report", "pytest_runtest_makereport", "quick_disk", "quick_imports"]
__all__ += ["state_folder"]


@pytest.fixture
def page_of(tmp_path) -> Callable[[str, Any], str]:
    """Save results, and return the page that shows them."""

    def shown(name: str, results: Any) -> str:
        page.save(name, results, folder=tmp_path)
        page.write(folder=tmp_path)
        return (tmp_path / "README.md").read_text()

    return shown


@pytest.fixture
def warm(monkeypatch):
    """Let what learns, and what is timed within its process, run in processes that cost little."""

    def run(arguments, *, folder, **_):
        option, module, *rest = arguments
        assert option == "-m"
        with monkeypatch.context() as patch:
            patch.chdir(folder)
            started = Forked(rest, module=module)
        out, err = started.communicate(timeout=120)
        assert started.returncode == 0, err
        return process.Finished(out, 0.0)

    for module in (process, claims, asynchronous, startup):
        monkeypatch.setattr(module, "run", run)

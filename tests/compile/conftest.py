import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from rlrun.compile import backend


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Call graphs as they were traced, since to compile one takes seconds; return those that were made."""
    modules: list[Any] = []

    def compiled(module: Any, inputs: Sequence[Any], device: str, *, sized: bool, own: int) -> Callable[..., Any]:
        module.recompile()
        modules.append(module)
        return module

    monkeypatch.setattr(backend, "compiled", compiled)
    return modules


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterable[Callable[[], list[str]]]:
    """What the log says of hooks that are called without a graph."""
    with caplog.at_level(logging.WARNING, "rlrun"):
        yield lambda: [record.getMessage() for record in caplog.records if record.name == "rlrun"]

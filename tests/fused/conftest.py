from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rlrun.compile import graph


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Call graphs as they were traced, since to compile one takes seconds; return those that were made."""
    modules: list[Any] = []

    def compiled(module: Any, inputs: Sequence[Any], device: str, *, sized: bool) -> Callable[..., Any]:
        module.recompile()
        modules.append(module)
        return module

    monkeypatch.setattr(graph, "compiled", compiled)
    return modules

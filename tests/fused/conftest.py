from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rlrun.fused import graph


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Call graphs as they were traced, since to compile one takes seconds; return those that were made."""
    made: list[Any] = []

    def compiled(found: Any, inputs: Sequence[Any], device: str, *, sized: bool) -> Callable[..., Any]:
        found.recompile()
        made.append(found)
        return found

    monkeypatch.setattr(graph, "compiled", compiled)
    return made

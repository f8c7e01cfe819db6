"""What tests of several folders share."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class of processes that cost little."""
    with monkeypatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[1])
        return importlib.import_module("tests.forked").Forked

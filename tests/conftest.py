"""What tests of several folders share."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session", autouse=True)
def quick_disk() -> Iterator[None]:
    """The disk need not really have what this process writes: nobody cuts the power. Other processes do wait for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class of processes that cost little."""
    with monkeypatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[1])
        return importlib.import_module("tests.forked").Forked

"""What tests of several folders share."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="session", autouse=True)
def quick_disk() -> Iterator[None]:
    """The disk need not really have what this process writes: nobody cuts the power. Other processes do wait for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that starts processes which cost little."""
    with monkeypatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[1])
        return importlib.import_module("tests.forked")


@pytest.fixture
def forked(children: ModuleType) -> Any:
    """Start a command in a process that costs little."""
    return children.Forked

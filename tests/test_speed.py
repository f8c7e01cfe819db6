"""What the machinery may cost; the least of several, since other load can only add."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

pytestmark = pytest.mark.speed


def test_dispatch_of_nine_empty_callbacks_takes_ten_microseconds(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    dispatch = importlib.import_module("benchmarks.dispatch")
    found = dispatch.measure(repeats=10)
    assert found["callbacks"] == 9
    assert found["microseconds"] < 10.0

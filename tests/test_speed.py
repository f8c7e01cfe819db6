"""What the machinery may cost; the least of several, since other load can only add."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from tests.pace import within

pytestmark = pytest.mark.speed


def test_dispatch_of_nine_empty_callbacks_takes_ten_microseconds(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    dispatch = importlib.import_module("benchmarks.dispatch")
    assert (dispatch.CALLBACKS, dispatch.BAR) == (9, 10.0)
    assert within(dispatch.microseconds, dispatch.BAR)

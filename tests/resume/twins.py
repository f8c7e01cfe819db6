"""A run that never stopped, and one that was left at a checkpoint and resumed."""

import functools
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.short import copy_as_killed, records

import rlrun
from rlrun.config import Composed

from .reach import Leaves, differences, walk

__all__ = ["assert_exact", "copy_as_killed", "differences_of", "records", "signal_at", "twins", "walk"]


def twins(overrides: list[str] | Composed, folder: Path, *, at: int) -> tuple[Leaves, Leaves]:
    """Train without a stop; then again from the first checkpoint at or after some steps. Return what both reach."""
    whole = walk(rlrun.train(overrides, run_dir=folder / "whole").trainer)
    copy_as_killed(folder / "whole", folder / "resumed", at=at)
    return whole, walk(rlrun.resume(folder / "resumed").trainer)


def assert_exact(overrides: list[str] | Composed, folder: Path, *, at: int) -> None:
    """Require that a run that was left at a checkpoint ends with the state and metrics of one that never stopped."""
    lines = differences(*twins(overrides, folder, at=at))
    assert not lines, "\n".join(lines)
    assert records(folder / "resumed") == records(folder / "whole")


def differences_of(whole: Leaves, resumed: Any) -> list[str]:
    """Return what differs between a whole run and a resumed one, whichever checkpoint wrote which rows."""
    return [line for line in differences(whole, walk(resumed.trainer)) if "._chain." not in line]


def signal_at(monkeypatch: pytest.MonkeyPatch, kind: type, name: str, count: int) -> list[int]:
    """Let SIGTERM come when a method is called for so many a time; return how many calls are left until then."""
    method, remaining = getattr(kind, name), [count]

    @functools.wraps(method)
    def called(self: Any, *args: Any, **named: Any) -> Any:
        remaining[0] -= 1
        if remaining[0] == 0:
            signal.raise_signal(signal.SIGTERM)
        return method(self, *args, **named)

    monkeypatch.setattr(kind, name, called)
    return remaining

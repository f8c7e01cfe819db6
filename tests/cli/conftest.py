"""The `rlrun` command, called in this process from an empty folder."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from rlrun.cli.main import main

TINY = (
    "algorithm.hidden=[8,8]",
    "algorithm.batch_size=4",
    "algorithm.warmup_steps=20",
    "stop.env_steps=40",
    "evaluation.every=0",
    "logger=[]",
)


class Outcome(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Stand in an empty folder; afterwards no module of it is known any more."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        namespace = getattr(sys.modules[name], "__dict__", {})  # some modules answer to any attribute
        places = [namespace.get("__file__"), *(namespace.get("__path__") or [])]
        if any(str(tmp_path) in str(place) for place in places):
            del sys.modules[name]


@pytest.fixture
def write(project: Path) -> Callable[[str, str], Path]:
    """Write a file of the project."""

    def write_file(name: str, text: str) -> Path:
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write_file


@pytest.fixture
def rlrun(project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Call the command with some words."""

    def call(*overrides: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["rlrun", *map(str, overrides)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as exit_info:
            main()
        return Outcome(exit_info.value.code, *capfd.readouterr())

    return call


@pytest.fixture
def tiny_run(rlrun: Callable[..., Outcome]) -> Callable[..., Outcome]:
    """Train for a moment."""
    return lambda *overrides: rlrun("train", *TINY, *overrides)

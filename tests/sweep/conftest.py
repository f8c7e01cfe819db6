"""The `rlrun` command in this process, in an empty folder; and a sweep's folder that somebody else has made."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from tests.command import code_of


class EpisodeEnd(NamedTuple):
    """What a command came to."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def rlrun(capfd):
    """Run a command in this process; its jobs are processes of their own, and begin at once."""

    def run(*overrides):
        capfd.readouterr()
        code = code_of(*overrides)
        return EpisodeEnd(code, *capfd.readouterr())

    return run


@pytest.fixture
def foreign(project):
    """A sweep's folder, as yet without jobs."""
    Path("s").mkdir()
    Path("s/sweep.json").write_text("{}")
    return Path("s")

"""The `rlrun` command, called in this process from an empty folder."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.cli import attacks
from tests.command import code_of

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


@pytest.fixture(scope="session")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run that ended well, in a folder of its own; nobody changes it."""
    folder = tmp_path_factory.mktemp("honest")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", list(sys.path))
        return attacks.train(folder)


@pytest.fixture
def rlrun(project: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Call the command with some words."""

    def call(*overrides: str) -> Outcome:
        capfd.readouterr()
        return Outcome(code_of(*map(str, overrides)), *capfd.readouterr())

    return call


@pytest.fixture
def tiny_run(rlrun: Callable[..., Outcome]) -> Callable[..., Outcome]:
    """Train for a moment."""
    return lambda *overrides: rlrun("train", *TINY, *overrides)

"""Short runs by the `rlrun` command."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli import attacks

TINY = (
    "algorithm.hidden=[8,8]",
    "algorithm.batch_size=4",
    "algorithm.warmup_steps=20",
    "stop.env_steps=40",
    "evaluation.every=0",
    "logger=[]",
)


@pytest.fixture(scope="session")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run that ended well, in a folder of its own; nobody changes it."""
    folder = tmp_path_factory.mktemp("honest")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", list(sys.path))
        return attacks.train(folder)


@pytest.fixture
def tiny_run(rlrun: Callable[..., Any]) -> Callable[..., Any]:
    """Train for a moment."""
    return lambda *overrides: rlrun("train", *TINY, *overrides)

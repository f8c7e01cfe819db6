from pathlib import Path

import pytest
import torch


@pytest.fixture
def no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every draw of a normal distribution be its mean."""
    monkeypatch.setattr("torch.randn_like", torch.zeros_like)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path

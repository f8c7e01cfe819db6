"""What tests of commands share: an empty folder to stand in, settings of short runs, and what runs wrote."""

import json
from pathlib import Path
from typing import Any

import pytest

TINY = (
    *("algorithm.hidden=[8,8]", "algorithm.batch_size=4", "algorithm.warmup_steps=20"),
    *("algorithm.updates_per_step=0.5", "stop.env_steps=100", "logger=[]"),
    *("evaluation.every=40", "evaluation.episodes=2", "evaluation.max_steps=20"),
)


@pytest.fixture(autouse=True)
def folder(project: Path) -> None:
    """Stand in an empty folder."""


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def records(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
